# Each target is one script; the text after ## is what `make help` shows.

.DEFAULT_GOAL := help
.PHONY: help install run test check bench lock clean

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1 ~\2/p' $(firstword $(MAKEFILE_LIST)) | \
	    awk -F '~' '{ printf "%-16s %s\n", $$1, $$2 }'

install: ## Build .venv from the lock (PYTHON= names the Python to use)
	@scripts/install

run: ## Run four sample jobs and show their pages (ONCE=1 ends by itself, PORT= picks the port)
	@scripts/run

test: ## Install what the tests need, then run all of them (ARGS="-k store" for some)
	@scripts/test $(ARGS)

check: ## Only the style and the types: ruff and mypy
	@scripts/install dev
	@scripts/check

bench: ## Measure every figure beside its peer and write the table (ARGS="name" for one)
	@scripts/bench $(ARGS)

lock: ## Write the requirement files anew (UPGRADE=1 takes newer versions)
	@scripts/lock

clean: ## Remove .venv and everything that was generated
	@scripts/clean
