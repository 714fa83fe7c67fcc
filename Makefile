# Each target is one script; the text after ## is what `make help` shows.

.DEFAULT_GOAL := help
.PHONY: help install run site fuzz test test-fast test-guest test-long soak drill cluster check plugin bench docs translations pictures lock clean test-packages test-six packages

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1 ~\2/p' $(firstword $(MAKEFILE_LIST)) | \
	    awk -F '~' '{ printf "%-16s %s\n", $$1, $$2 }'

install: ## Build .venv from the lock (PYTHON= names the Python to use)
	@scripts/install

run: ## Run four sample jobs and show their pages (ONCE=1 ends by itself; PORT=, STORE=)
	@scripts/run

test: ## Style, types and tests with real parts; installs what they need (ARGS="-k store" for some)
	@scripts/test $(ARGS)

test-fast: ## Style, types and the tests that need no root, Slurm, browser or server
	@scripts/test-fast $(ARGS)

test-guest: ## The agent on cgroup v2 and the systemd units, in a guest (some minutes, no KVM needed)
	@scripts/test-guest $(ARGS)

test-long: ## Repetitions, outages of minutes and many kills (ARGS="-k bed" for some)
	@scripts/test-long $(ARGS)

test-six: ## make run and make test from a fresh clone, three times and three times under load (hours)
	@scripts/test-six $(ARGS)

soak: ## Random attacks on a real server and agent (MINUTES=30, SEED=; ARGS=--attack: all at once, --postgresql)
	@scripts/soak $(ARGS)

fuzz: ## Fuzz every parser with coverage guidance (CASES=1000000 in all; ARGS="wire plugin" for some)
	@scripts/fuzz $(ARGS)

drill: ## Break every part of a site under load, and write docs/drill.md (ARGS="--list", or names)
	@scripts/drill $(ARGS)

cluster: ## A real Slurm to work in, with the pages of its jobs, until Ctrl-C (ARGS="--nodes 5")
	@scripts/cluster $(ARGS)

check: ## Style and types only: ruff, mypy and the import contract
	@scripts/install dev
	@scripts/check

plugin: ## Build the Slurm profile plugin for the Slurm installed here (or SLURM_SOURCE=directory)
	@scripts/plugin

packages: ## Build wheel, sdist, Debian packages, RPMs and the archive of the agent into dist/ (minutes)
	@scripts/packages

test-packages: ## Install the packages of dist/ in fresh roots (needs root, minutes; make packages first)
	@scripts/test-packages $(ARGS)

bench: ## Measure every figure alongside its peer and write the table (ARGS="name" for one)
	@scripts/bench $(ARGS)

docs: ## Write the generated parts of docs/ again: settings, help texts, modules
	@scripts/docs

translations: ## Collect the messages of the pages, and name those without a translation
	@scripts/install && .venv/bin/python scripts/translations

site: ## Build the site of the documents in build/site
	@scripts/site

pictures: ## Take the screenshots of the README again, from a real run (needs root and Chromium)
	@scripts/pictures

lock: ## Write the requirement files again (UPGRADE=1 takes newer versions)
	@scripts/lock

clean: ## Remove .venv and everything that was generated
	@scripts/clean
