# Each target is one script; the text after ## is what `make help` shows.

.DEFAULT_GOAL := help
.PHONY: help install run test test-guest test-long cluster check plugin bench docs pictures lock clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1 ~\2/p' $(firstword $(MAKEFILE_LIST)) | \
	    awk -F '~' '{ printf "%-16s %s\n", $$1, $$2 }'

install: ## Build .venv from the lock (PYTHON= names the Python to use)
	@scripts/install

run: ## Run four sample jobs and show their pages (ONCE=1 ends by itself; PORT=, STORE=)
	@scripts/run

test: ## Install what the tests need, then run all of them (ARGS="-k store" for some)
	@scripts/test $(ARGS)

test-guest: ## The agent on cgroup v2, with a real Slurm in a guest (some minutes, no KVM needed)
	@scripts/test-guest

test-long: ## Repetitions, outages of minutes, many kills (ARGS="-k bed" for some)
	@scripts/test-long $(ARGS)

cluster: ## A real Slurm to work in, with the pages of its jobs, until Ctrl-C (ARGS="--nodes 5")
	@scripts/cluster $(ARGS)

check: ## Only the style and the types: ruff and mypy
	@scripts/install dev
	@scripts/check

plugin: ## Build the Slurm profile plugin for the Slurm installed here (or SLURM_SOURCE=folder)
	@scripts/plugin

bench: ## Measure every figure beside its peer and write the table (ARGS="name" for one)
	@scripts/bench $(ARGS)

docs: ## Write the generated parts of docs/ anew: settings, help texts, modules
	@scripts/docs

pictures: ## Make the pictures of the README anew, from a real run (needs root and Chromium)
	@scripts/pictures

lock: ## Write the requirement files anew (UPGRADE=1 takes newer versions)
	@scripts/lock

clean: ## Remove .venv and everything that was generated
	@scripts/clean
