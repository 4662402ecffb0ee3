# Two commands matter: `make run` serves ./release, `make test` checks everything.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# The end-to-end tests wait more than they compute: more processes than cores pay.
WORKERS ?= 5
UV := uv==0.13.9
COMPILE := uv pip compile -q --generate-hashes --no-emit-index-url --no-emit-find-links \
	--universal --python-version 3.11 --no-header

.PHONY: run test lint types layers unit lock clean

run: $(VENV)/.run
	$(BIN)/tidegate serve release --sample $(if $(filter 0,$(shell id -u)),--user root)

$(VENV)/bin/python:
	@tools/need-venv "$(PYTHON)"
	$(PYTHON) -m venv $(VENV)

# What the server imports is compiled here, a sixth of all that is installed: a process that compiles
# holds 8 MB more for good, and what it loads later (the admin pages) it may not keep.
$(VENV)/.run: requirements/run.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check --require-hashes -r requirements/run.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -c 'import tidegate.server.app.cli.serve, tidegate.server.app.run, tidegate.server.app.service, tidegate.server.admin.site'
	@touch $@

# uv needs a quarter of pip's work. pip, which has a configuration of its own, installs where uv finds no index.
$(VENV)/.test: requirements/test.txt pyproject.toml | $(VENV)/bin/python
	@awk '/^[^ ]/ {wanted = /^uv==/} wanted' requirements/test.txt > $(VENV)/uv.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r $(VENV)/uv.txt
	$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements/test.txt || \
		$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/test.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@ $(VENV)/.run

# Where compiled files are forbidden, each of the suite's processes would compile everything anew.
test unit quick compiled: export PYTHONDONTWRITEBYTECODE =

# pytest comes last, so that its summary is the last thing on the screen.
test: $(VENV)/.test
	tools/need-debian
	$(MAKE) --no-print-directory -j 2 --output-sync=target lint types layers compiled
	$(MAKE) --no-print-directory unit

# Each of pytest's processes reads all tests: they are rewritten and compiled once, beside mypy.
.PHONY: compiled
compiled: $(VENV)/.test
	$(BIN)/python -m pytest --collect-only -qq > /dev/null

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# A folder in which the checkout has its package's name, for tools that find packages by folder.
build/typed/tidegate:
	mkdir -p $(@D)
	ln -sfn ../.. $@

types: $(VENV)/.test build/typed/tidegate
	$(BIN)/mypy

layers: $(VENV)/.test build/typed/tidegate
	cd build/typed && $(abspath $(BIN))/lint-imports --no-logo --config ../../setup.cfg

# A test that fails only beside others is a bug of its own: both runs stand in the output. One of them
# may be chance, two are not.
unit: $(VENV)/.test
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder || { \
		failed=$$($(BIN)/python -c 'import json; print(len(json.load(open(".pytest_cache/v/cache/lastfailed"))))'); \
		echo "Those that failed beside others run once more, alone:"; \
		PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest --last-failed \
			--last-failed-no-failures none && [ "$$failed" -le 1 ]; }

# All that takes less than a second each and starts no server: a minute and a half on two cores.
.PHONY: quick
quick: $(VENV)/.test
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not e2e"

# Lines and module constants by room, beside what each may have. `make test` prints them, too.
.PHONY: size
size: $(VENV)/.test
	$(BIN)/python -m tests.size

# The suite's short, repeatable run made long and different each time.
.PHONY: fuzz
fuzz: $(VENV)/.test
	FUZZ_EXAMPLES=$${FUZZ_EXAMPLES:-20000} $(BIN)/python -m pytest tests/fuzz

# Simulated worlds, searched for broken promises: tests/world/README.md.
HOURS ?= 8
.PHONY: search
search: $(VENV)/.test
	$(BIN)/python -m tests.world --minutes $$(( $(HOURS) * 60 )) --keep-going

# Written anew after a change of pyproject.toml; a test fails while they differ.
lock: $(VENV)/bin/python
	$(BIN)/python -m pip install -q $(UV)
	$(BIN)/$(COMPILE) pyproject.toml requirements/build.in -o requirements/run.txt
	$(BIN)/$(COMPILE) --extra test --extra loadtest --extra postgres --extra peers \
		--extra oidc \
		pyproject.toml requirements/build.in -o requirements/test.txt
	$(BIN)/$(COMPILE) --extra postgres --extra peers --extra oidc -c requirements/test.txt \
		pyproject.toml requirements/build.in -o requirements/server.txt
	$(BIN)/$(COMPILE) --extra loadtest -c requirements/test.txt \
		pyproject.toml requirements/build.in -o requirements/load.txt
	$(BIN)/$(COMPILE) --extra docs pyproject.toml requirements/build.in -o requirements/docs.txt

# The documents as a site in build/site, with strict links; its folder is `docs/site`.
.PHONY: docs
docs: $(VENV)/bin/python
	$(PYTHON) -m venv build/docs
	build/docs/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/docs.txt
	build/docs/bin/sphinx-build -q -n -W --keep-going -c docs/site . build/site

# Written anew after a change of a .po file or of Babel; a test fails while they differ.
.PHONY: catalogues
catalogues: $(VENV)/.test
	$(BIN)/python tools/build-catalogues

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Server CPU, throughput and memory beside nginx (Debian: nginx wrk).
.PHONY: bench
bench: $(VENV)/.test
	$(BIN)/python -m bench.http_peers

# Mirrors on a real pair of trees, beside rsync (Debian: rsync).
.PHONY: bench-mirror
bench-mirror: $(VENV)/.test
	$(BIN)/python -m bench.mirror

# Leaders, nodes, machines and database connections killed and stopped at random, under clients
# (Debian: postgresql).
.PHONY: cluster-faults
cluster-faults: $(VENV)/.test
	$(BIN)/python -m tests.machine_faults --seconds $${SECONDS_OF_FAULTS:-600}

# Multicast in network namespaces beside uftp, udpcast and TCP; needs root
# (Debian: iproute2 nftables uftp udpcast nginx curl).
.PHONY: lab-multicast
lab-multicast: $(VENV)/.test
	$(BIN)/python -m bench.multicast.lab

# Downloads from four rate-limited mirrors, ours beside aria2, axel and curl (root; Debian:
# nginx aria2 axel curl iproute2 nftables gcc).
.PHONY: lab-parallel
lab-parallel: $(VENV)/.test
	$(BIN)/python -m bench.parallel.lab

# Policies live beside nginx and the simulator, on a limited line in a namespace (root; Debian: nginx).
.PHONY: lab-policies
lab-policies: $(VENV)/.test
	$(BIN)/python -m bench.policies.lab

# What each law of Fair brings, in virtual time: the table of docs/policies.md (four minutes).
.PHONY: laws
laws: $(VENV)/.test
	$(BIN)/python -m bench.policies.laws --write

# An hour of faults at random under mixed real clients.
.PHONY: chaos
chaos: $(VENV)/.test
	TIDEGATE_CHAOS_S=$${TIDEGATE_CHAOS_S:-3600} $(BIN)/python -m pytest -q --timeout 4000 tests/test_e2e_chaos.py

# The whole site on this machine, without Docker: an origin with two mirrors, until Ctrl-C.
.PHONY: staging
staging: $(VENV)/.test
	$(BIN)/python -m bench.staging $${DIR:-staging}

# What attackers cost the others, simulated and live: the tables of docs/security.md (hours; live ten minutes).
.PHONY: attacks
attacks: $(VENV)/.test
	$(BIN)/python -m bench.attacks.table --results build/attacks.jsonl --write

# The attacker that costs most and the crowd that loses most, searched in virtual time. The next run
# goes on from what this one played; after a change of the policies, remove build/adversary.jsonl.
.PHONY: adversary
adversary: $(VENV)/.test
	$(BIN)/python -m tests.attacks.adversary --minutes $${MINUTES:-60} --results build/adversary.jsonl

# The pictures of the documents, taken from a running server (Debian: chromium chromium-driver).
.PHONY: pictures
pictures: $(VENV)/.test
	$(BIN)/python -m tests.pictures docs/pictures

# Wheel, sdist, SBOM (CycloneDX) and notes of HEAD, the same bytes on each machine, and their sums.
.PHONY: dist
dist: $(VENV)/.test
	$(BIN)/python tools/build-release dist

# What is published is a tagged commit: `git tag v0.2.0` first.
.PHONY: release
release: $(VENV)/.test
	git describe --exact-match --match "v$$($(BIN)/python -c 'import tidegate; print(tidegate.__version__)')"
	$(MAKE) --no-print-directory dist

# A Debian package for Debian 12 and 13: dist/tidegate_*.deb.
.PHONY: deb
deb: $(VENV)/.test
	$(BIN)/python tools/build-deb dist

# Known vulnerabilities of what we depend on. It needs a database of them: PyPI's JSON pages, or
# another one: make audit AUDIT_DATABASE="-s osv --osv-url https://osv.example.org/v1/query".
AUDIT_DATABASE ?= -s pypi
PIP_AUDIT ?= build/tools/bin/pip-audit
build/tools: | $(VENV)/bin/python
	$(BIN)/python -m venv $@
	$@/bin/python -m pip install -q --disable-pip-version-check pip-audit==2.10.1

# pip-audit ends alike where it found a vulnerability and where it could look nothing up.
.PHONY: audit
audit: build/tools
	@rm -f build/audit.json
	@$(PIP_AUDIT) --strict --disable-pip --require-hashes -r requirements/run.txt \
		$(AUDIT_DATABASE) --format json --output build/audit.json; status=$$?; \
	if [ ! -s build/audit.json ]; then \
		echo "make audit FAILED: nothing was looked up, so nothing is known about vulnerabilities." \
			"It needs a database: https://pypi.org, or another one by AUDIT_DATABASE." >&2; \
		exit 2; \
	fi; \
	echo "Every dependency was looked up. What was found stands in build/audit.json."; \
	exit $$status
