# make            builds the command and the library
# make demo       shows redis over TCP and over shared memory, on this machine
# make test       builds and runs every test
# make stress     10 GB of checked bytes over lanes that come and go, ends stopped and killed: minutes (SEED=N repeats)
# make hostile    a hostile peer against servers of each kind, HOSTILE_ROUNDS=2000 rounds each, HOSTILE_SEED=
# make fuzz       every fuzz target for ten minutes; FUZZ_SECONDS=, then ci/fuzz keep TARGET
# make differential  random programs on TCP and on lanes, compared call by call; DIFFERENTIAL_SECONDS=, _CALLS=, _SEED=
# make proof      the differential tester on an old library, whose seven known faults it must find: half an hour
# make mutants    faults put into the library, each of which the differential tester must find; MUTANT_SECONDS=600 each: an hour
# make coverage   how many of core's lines core's own tests reach; ci/coverage missing shows where not
# make sanitize   the C programs of the tests with a library that the thread and address sanitizers watch; SANITIZE_TESTS=
# make crash      client, server, broker killed at 340 system calls each, CRASH_ROUNDS=, CRASH_SEED=
# make soak       2,000 connections that come and go for ten minutes; SOAK_SECONDS=, SOAK_CONNECTIONS=
# make suites     CPython's, libevent's, redis's and Go's own test suites, and servers in Go: hours
# make bench      measures lanes beside TCP and UNIX sockets, a quarter of an hour; BENCH="--quick" or names of workloads
# make lint       formatting, clippy, rustdoc, a reason for every unsafe block, and the dependencies (ci/deny)
# make install    PREFIX=/usr/local DESTDIR=
# make deb        a package of what is built, in OUT=target/; also rpm, apk (Alpine), and tarball: an archive to unpack anywhere
# make image      a container image of broker, command and library, for `podman load` and others; IMAGE=localhost/shunpike OUT=target/

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release
SHARE := $(DESTDIR)$(PREFIX)/share

.PHONY: build demo test hostile fuzz differential proof mutants coverage sanitize crash soak stress suites bench lint install uninstall deb rpm apk tarball image clean

build:
	ci/build $(TARGET)

demo: build
	ci/demo

test:
	ci/test

stress: build
	ci/stress $(if $(SEED),--seed $(SEED))

hostile: build
	HOSTILE_ROUNDS=$(or $(HOSTILE_ROUNDS),2000) python3 -m pytest tests/test_hostile.py tests/test_siege.py -v

fuzz:
	FUZZ_SECONDS=$(or $(FUZZ_SECONDS),600) ci/fuzz

differential: build
	ci/differential

proof: build
	ci/proof

mutants: build
	ci/mutants

coverage:
	ci/coverage

sanitize: build
	SANITIZE_TESTS="$(or $(SANITIZE_TESTS),both or earned or client or server)" ci/sanitize

suites: build
	ci/deps
	SHUNPIKE_SUITES=all python3 -m pytest tests -m suites -s

crash: build
	CRASH_ROUNDS=$(or $(CRASH_ROUNDS),340) python3 -m pytest tests/test_killed.py -v

soak: build
	SOAK_SECONDS=$(or $(SOAK_SECONDS),600) SOAK_CONNECTIONS=$(or $(SOAK_CONNECTIONS),2000) python3 -m pytest tests/test_soak.py -v -s

bench: build
	ci/deps sockperf iperf3 nginx wrk redis-server redis-benchmark openssl strace
	$(RELEASE)/shunpike bench --check --json bench.json --chart bench.svg $(BENCH)

lint:
	ci/lint
	ci/safety
	ci/deny

# Installs what is built already, so that `sudo make install` compiles nothing as root.
BUILT := $(addprefix $(RELEASE)/,shunpike shunpike-load libshunpike.so libshunpike-entry.so)

install: | $(BUILT)
	install -D -m 755 $(RELEASE)/shunpike $(DESTDIR)$(PREFIX)/bin/shunpike
	# By a new name first: programs that start meanwhile, or run from it, have the old one or the new one whole; so they have after a
	# power failure.
	install -D -m 644 $(RELEASE)/libshunpike.so $(DESTDIR)$(PREFIX)/lib/.libshunpike.so.new
	sync $(DESTDIR)$(PREFIX)/lib/.libshunpike.so.new
	mv -f $(DESTDIR)$(PREFIX)/lib/.libshunpike.so.new $(DESTDIR)$(PREFIX)/lib/libshunpike.so
	# What `run --entry=syscall` loads.
	install -D -m 644 $(RELEASE)/libshunpike-entry.so $(DESTDIR)$(PREFIX)/lib/shunpike/libshunpike-entry.so
	# The load programs of `shunpike bench`.
	install -m 755 $(RELEASE)/shunpike-load $(DESTDIR)$(PREFIX)/lib/shunpike/shunpike-load
	install -d $(SHARE)/man/man1
	# Everybody's to read, whatever umask root has.
	umask 022 && $(RELEASE)/shunpike man $(SHARE)/man/man1
	install -d $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions $(SHARE)/fish/vendor_completions.d
	umask 022 && $(RELEASE)/shunpike completions bash > $(SHARE)/bash-completion/completions/shunpike
	umask 022 && $(RELEASE)/shunpike completions zsh > $(SHARE)/zsh/site-functions/_shunpike
	umask 022 && $(RELEASE)/shunpike completions fish > $(SHARE)/fish/vendor_completions.d/shunpike.fish

	# For fingers that know smc-tools: put this directory into PATH.
	install -d $(DESTDIR)$(PREFIX)/lib/shunpike/smc-tools
	for name in smc_run smcss smcd smc_chk smc_dbg; do \
	    ln -sfn ../../../bin/shunpike $(DESTDIR)$(PREFIX)/lib/shunpike/smc-tools/$$name; done
	# For Wireshark: to be linked into its own directory of such programs (docs/seeing.md).
	install -d $(DESTDIR)$(PREFIX)/lib/shunpike/extcap
	ln -sfn ../../../bin/shunpike $(DESTDIR)$(PREFIX)/lib/shunpike/extcap/shunpike-extcap
	# What containers preload (shunpike cdi generate).
	install -m 644 dist/cdi/container.preload $(DESTDIR)$(PREFIX)/lib/shunpike/container.preload
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system $(SHARE)/doc/shunpike
	umask 022 && sed 's|/usr/local/|$(PREFIX)/|' dist/systemd/shunpike-broker.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/shunpike-broker.service
	install -d $(addprefix $(DESTDIR)$(PREFIX)/lib/,sysusers.d tmpfiles.d)
	install -m 644 dist/systemd/shunpike.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/shunpike.conf
	install -m 644 dist/systemd/shunpike.tmpfiles $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/shunpike.conf
	install -m 644 dist/broker.toml $(SHARE)/doc/shunpike/broker.toml
	# As they lie here, so that their links to one another hold.
	install -d $(addprefix $(SHARE)/doc/shunpike/,docs dist/bpftrace dist/grafana)
	install -m 644 README.md COMPLIANCE.md $(SHARE)/doc/shunpike
	install -m 644 docs/*.md $(SHARE)/doc/shunpike/docs
	install -m 755 dist/bpftrace/*.bt $(SHARE)/doc/shunpike/dist/bpftrace
	install -m 644 dist/grafana/*.json $(SHARE)/doc/shunpike/dist/grafana

$(BUILT) &:
	ci/build $(TARGET)

uninstall:
	# What `shunpike enable` has done goes first: the loader complains in each program that is to load a library that is not there.
	[ ! -x $(DESTDIR)$(PREFIX)/bin/shunpike ] || \
	    $(DESTDIR)$(PREFIX)/bin/shunpike disable --everything --root $(or $(DESTDIR),/)
	rm -f $(DESTDIR)$(PREFIX)/bin/shunpike $(DESTDIR)$(PREFIX)/lib/libshunpike.so
	rm -f $(SHARE)/man/man1/shunpike.1 $(SHARE)/man/man1/shunpike-*.1
	rm -f $(SHARE)/bash-completion/completions/shunpike $(SHARE)/zsh/site-functions/_shunpike
	rm -f $(SHARE)/fish/vendor_completions.d/shunpike.fish
	rm -f $(DESTDIR)$(PREFIX)/lib/systemd/system/shunpike-broker.service
	rm -f $(DESTDIR)$(PREFIX)/lib/sysusers.d/shunpike.conf $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/shunpike.conf
	rm -rf $(SHARE)/doc/shunpike $(DESTDIR)$(PREFIX)/lib/shunpike

OUT ?= $(TARGET)

deb rpm apk tarball image: | $(BUILT)
	dist/packages/build $@ $(RELEASE) $(OUT)

clean:
	$(CARGO) clean
