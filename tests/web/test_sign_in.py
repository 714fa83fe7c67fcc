"""Sign-in by each way in a real browser: local, OpenID Connect, LDAP, a proxy; and sign-out."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvicorn
from playwright.sync_api import expect

from jobsight.access.passwords import hash_password
from jobsight.config.settings import AccessSettings, LdapSettings, OidcSettings, ProxySettings
from jobsight.server.app import create_app
from jobsight.store.accounts.accounts import UserAccounts
from jobsight.store.store import Store
from tests.access import directory, issuer
from tests.ports import free_port
from tests.server.batches import batch
from tests.waiting import wait_until
from tests.web.conftest import TOKEN
from tests.web.conftest import browser as browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
PASSWORD = "correct horse battery"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as opened:
        assert opened.write(batch(12))
        assert opened.write(batch(13, user="bob", account="chemistry", name="other"))
        yield opened


@contextmanager
def serving(store: Store, access: AccessSettings, port: int) -> Iterator[str]:
    app = create_app(store, TOKEN, delay=0, access=access)
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", lifespan="off")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(60)


@contextmanager
def page_of(browser: Browser, **options: object) -> Iterator[Page]:
    context = browser.new_context(**options)  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(60_000)
    try:
        yield page
    finally:
        context.close()


def shown_jobs(page: Page, url: str) -> set[str]:
    page.goto(f"{url}/jobs")
    text = page.inner_text("main")
    return {number for number in ("12", "13", "14") if number in text.split()}


def enter(page: Page, user: str, password: str) -> None:
    page.fill("#username", user)
    page.fill("#password", password)
    page.click("form:has(#password) button")


@pytest.mark.parametrize("scripts", [True, False])
def test_a_local_account_signs_in_and_out(browser: Browser, store: Store, scripts: bool) -> None:
    accounts = UserAccounts(store.database)
    accounts.add("alice", "user", password_hash=hash_password(PASSWORD))
    with (
        serving(store, AccessSettings(), free_port()) as url,
        page_of(browser, java_script_enabled=scripts) as page,
    ):
        page.goto(f"{url}/settings")
        enter(page, "alice", "wrong password")
        expect(page.locator("[role=alert]")).to_contain_text("is invalid")
        enter(page, "alice", PASSWORD)
        page.wait_for_url(f"{url}/settings")
        expect(page.locator("h1")).to_contain_text("Settings of alice")
        assert shown_jobs(page, url) == {"12"}
        page.goto(f"{url}/jobs/13")
        assert "404" in page.inner_text("main") or "no run" in page.inner_text("main").lower()
        page.goto(f"{url}/settings")
        page.click("text=Create a token")
        expect(page.locator("code.command")).to_have_text(re.compile("^jobsight-user-"))
        page.click("form.who button")
        page.wait_for_url(f"{url}/sign-in")
        page.goto(f"{url}/settings")
        assert page.locator("#password").count() == 1


#: What each role sees of docs/access.md: the jobs, the answers of some pages, and links at the top.
ROLES = {
    "user": ({"12"}, {"/jobs/13": 404, "/users/bob": 404, "/accounts/chemistry": 404}, set()),
    "coordinator": (
        {"12", "13"},
        {"/jobs/13": 200, "/users/bob": 404, "/accounts/chemistry": 200, "/accounts/physics": 404},
        set(),
    ),
    "mentor": (
        {"12", "13"},
        {"/jobs/13": 200, "/jobs/14": 404, "/accounts/chemistry": 200, "/operations": 404},
        set(),
    ),
    "staff": (
        {"12", "13", "14"},
        {"/jobs/14": 200, "/users/bob": 200, "/accounts/physics": 200, "/operations": 200},
        {"Users", "Operations"},
    ),
    "auditor": (
        {"12", "13", "14"},
        {"/jobs/13": 200, "/users/bob": 404, "/accounts/chemistry": 404, "/operations": 404},
        set(),
    ),
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.long
def test_each_role_sees_what_it_may(browser: Browser, store: Store, role: str) -> None:
    # Run 14 is of nobody whom a coordinator or mentor sees.
    assert store.write(batch(14, user="carl", account="biology"))
    seen, answers, links = ROLES[role]
    accounts = UserAccounts(store.database)
    of = ["chemistry"] if role in ("coordinator", "mentor") else ()
    accounts.add("alice", role, accounts=of, password_hash=hash_password(PASSWORD))
    with serving(store, AccessSettings(), free_port()) as url, page_of(browser) as page:
        page.goto(f"{url}/settings")
        enter(page, "alice", PASSWORD)
        page.wait_for_url(f"{url}/settings")
        expect(page.locator(".title-row")).to_contain_text(role)
        settings = page.inner_text("main")
        assert ("the jobs of all users" in settings) == (role in ("staff", "auditor"))
        assert ("with pseudonyms in place of names" in settings) == (role == "auditor")
        assert ("chemistry" in settings) == bool(of)
        # An auditor changes nothing: no token with changes.
        scopes = page.locator("select[name=scope] option").all_inner_texts()
        assert ("reading and changes" in scopes) == (role != "auditor")
        assert shown_jobs(page, url) == seen
        named = {"alice", "bob", "carl", "chemistry"} & set(page.inner_text("main").split())
        assert bool(named) == (role != "auditor")
        shown = {each.strip() for each in page.locator(".top nav a").all_inner_texts()}
        assert links <= shown
        assert shown & {"Operations"} == links & {"Operations"}
        for path, status in answers.items():
            reply = page.goto(url + path)
            assert reply is not None
            assert reply.status == status, path


def test_a_disabled_account_sees_nothing_from_that_moment(browser: Browser, store: Store) -> None:
    accounts = UserAccounts(store.database)
    accounts.add("alice", "user", password_hash=hash_password(PASSWORD))
    with serving(store, AccessSettings(), free_port()) as url, page_of(browser) as page:
        page.goto(f"{url}/jobs")
        enter(page, "alice", PASSWORD)
        page.wait_for_url(f"{url}/jobs")
        assert shown_jobs(page, url) == {"12"}
        accounts.disable("alice")
        reply = page.goto(f"{url}/jobs/12")
        assert reply is not None
        assert reply.status == 401
        enter(page, "alice", PASSWORD)
        expect(page.locator("[role=alert]")).to_contain_text("The account is disabled.")
        assert "multiply" not in page.inner_text("body")


def test_openid_connect(browser: Browser, store: Store, tmp_path: Path) -> None:
    if not issuer.is_installed():
        pytest.skip("no oidc-provider; scripts/npm-packages installs it where there is npm")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    secret = tmp_path / "secret"
    secret.write_text(issuer.SECRET)
    with issuer.running(f"{url}/sign-in/oidc/return", tmp_path) as address:
        settings = OidcSettings(
            issuer=address,
            client_id="jobsight",
            client_secret_file=str(secret),
            url=url,
            roles={"hpc-staff": "staff"},
        )
        with serving(store, AccessSettings(oidc=settings), port), page_of(browser) as page:
            page.goto(f"{url}/settings")
            page.click("text=Single sign-on")
            page.fill("input[name=login]", "carol")
            page.fill("input[name=password]", "anything")
            page.click("button[type=submit]")
            # The form of the sign-in has a button of the same kind as that of the consent.
            page.locator("input[name=prompt][value=consent]").wait_for(state="attached")
            page.click("button[type=submit]")
            page.wait_for_url(f"{url}/settings")
            expect(page.locator("h1")).to_contain_text("Settings of carol")
            assert shown_jobs(page, url) == {"12", "13"}
            page.goto(f"{url}/operations/accounts")
            assert "carol" in page.inner_text("table")
            page.click("form.who button")
            page.wait_for_url(f"{url}/sign-in")


@pytest.mark.skipif(not directory.is_installed(), reason="no slapd; apt-get install slapd")
def test_the_password_of_a_directory(browser: Browser, store: Store, tmp_path: Path) -> None:
    with directory.running(tmp_path) as running:
        settings = LdapSettings(
            url=running.tls,
            ca=running.authority,
            bind_template=f"uid={{user}},ou=people,{directory.SUFFIX}",
        )
        access = AccessSettings(ldap=settings)
        with serving(store, access, free_port()) as url, page_of(browser) as page:
            page.goto(f"{url}/settings")
            enter(page, "alice", directory.PASSWORD)
            page.wait_for_url(f"{url}/settings")
            expect(page.locator(".title-row")).to_contain_text("password of the directory")
            assert shown_jobs(page, url) == {"12"}


_NGINX = """
{user} daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ }}
http {{
  access_log off;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port};
    auth_basic "the site's portal"; auth_basic_user_file {folder}/users;
    location / {{
      proxy_pass {url}; proxy_set_header Host $http_host;
      proxy_set_header X-Remote-User $remote_user; proxy_set_header Authorization "";
    }}
  }}
}}
"""


def test_the_header_of_nginx(browser: Browser, store: Store, tmp_path: Path) -> None:
    access = AccessSettings(proxy=ProxySettings(addresses=["127.0.0.1"]))
    port = free_port()
    with serving(store, access, free_port()) as url:
        # The workers of root's nginx are another user, who may not enter this directory.
        user = "user root;" if os.geteuid() == 0 else ""
        (tmp_path / "users").write_text("alice:{PLAIN}portal\n")
        (tmp_path / "nginx.conf").write_text(
            _NGINX.format(user=user, folder=tmp_path, port=port, url=url)
        )
        command = ["/usr/sbin/nginx", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
        nginx = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: (tmp_path / "nginx.pid").exists())
            credentials = {"username": "alice", "password": "portal"}
            with page_of(browser, http_credentials=credentials) as page:
                front = f"http://127.0.0.1:{port}"
                page.goto(f"{front}/settings")
                assert "the site's portal" in page.inner_text(".title-row")
                assert shown_jobs(page, front) == {"12"}
                page.goto(f"{front}/settings")
                page.click("text=Create a token")
                expect(page.locator("code.command")).to_have_text(re.compile("^jobsight-user-"))
        finally:
            nginx.terminate()
            nginx.wait(60)
