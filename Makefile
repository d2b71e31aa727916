# choir: `make` builds build/choir from what this machine has and says what it found.
#
#   make                 the program (CPU; CUDA is added when a toolkit is found)
#   make quickstart      build, get a text, train a small GPT on 2 ranks, generate
#   make quickstart-speech  build, make corpora of speech, train recognisers on 2 ranks, transcribe
#   make quickstart-salm build, let a language model learn to hear: questions about speech, answered
#   make quickstart-duplex  build, make dialogues, let a model learn to listen while it speaks
#   make test            build and run every test; last line "N passed, N failed, N skipped"
#   make deps            install the Debian packages (apt); PREFIX=DIR unpacks them without root
#   make install         program, library, decks, job files, man pages, completion: PREFIX=DIR (/usr/local), DESTDIR
#   make help            everything else
#
# Where things are, if not where pkg-config says: MPICXX HDF5 BLAS_DIR ONEDNN CUDA_HOME CUDNN_HOME
# NCCL_HOME (CUDA_HOME=none builds without CUDA).
# MARCH=native is for this machine; MARCH=x86-64-v3 for any since 2015. DEBUG=1, SANITIZE=address,undefined.
# CUDA_ARCHS="80 90a": GPUs to compile for (default: those here, else A100 and H100; newer ones compile at their first
# start); "all": every one that the toolkit knows. WERROR=1: warnings are errors. UNITY=0: one source
# at a time, as whoever changes it again and again would.

BUILD   ?= build
# One name for a folder, in whatever form it is given: targets that depend on `build/x` are not
# rebuilt for `/.../build/x`.
override BUILD := $(shell realpath -ms --relative-base=. '$(BUILD)')
MPICXX  ?= mpicxx
MARCH   ?= native
SHELL   := /bin/bash
comma   := ,
HASH    := \#
MAKEFLAGS += --no-builtin-rules
.DELETE_ON_ERROR:
.SECONDARY:

.DEFAULT_GOAL := all

# --- goals that must work before packages are installed
# --------------------------------------------
QUICKSTARTS := quickstart quickstart-speech quickstart-salm quickstart-duplex quickstart-smollm2
SETUP_GOALS := deps deps-speech help clean data-quickstart data-shakespeare layers style house $(QUICKSTARTS) test test-long bundle
ifneq ($(filter-out $(SETUP_GOALS),$(or $(MAKECMDGOALS),all)),)
  NEEDS_FEATURES := 1
endif

.PHONY: all deps deps-speech help clean features $(QUICKSTARTS) test test-long bundle install layers style house data-quickstart data-shakespeare
help:
	@sed -n '3,18p' Makefile | sed 's/^# \{0,1\}//'
	@echo "  make test-long       the slow tests: fault loops, sanitizers, exhaustive grids"
	@echo "  make quickstart-smollm2 MODEL=SmolLM2-135M-Instruct.gguf   a real language model learns to hear"
	@echo "  make deps-speech     recorded prompts for 'choir prepare corpus asterisk' (apt)"
	@echo "  make fuzz            the programs that test/run/long/fuzz.sh runs (Clang: .make/deps.sh --fuzz)"
	@echo "  make bundle          everything that another machine needs to run it, in one file"
	@echo "  make layers style    checks the house rules: who may include whom, file sizes, names, format"
	@echo "  make house           prints the figures of the source that the house rules limit"
	@echo "  make clean           removes $(BUILD)"

deps:
	@.make/deps.sh "$(PREFIX)"
# Recorded speech for `choir prepare corpus asterisk`; make test does without it.
deps-speech:
	@.make/deps.sh --speech "$(PREFIX)"

# Without a GPU a quickstart need not wait for kernels that nobody can run, even where a toolkit is
# installed: a later `make` adds them.
without_gpu = $(if $(shell nvidia-smi -L 2>/dev/null),,CUDA_HOME=none)
# All cores, unless -j was given.
all_cores = $(if $(filter -j%,$(MAKEFLAGS)),,-j$$(nproc))
parallel_make = $(MAKE) --no-print-directory -j$$(nproc)
$(QUICKSTARTS): %:
	@$(if $(filter %-smollm2,$*),$(if $(MODEL),,$(error make $* MODEL=FILE: the GGUF or the folder of SmolLM2-135M)))
	@.make/deps.sh --if-missing
	@.make/progress.sh $(BUILD) $(parallel_make) $(without_gpu) $(BUILD)/choir
	@.make/$(subst -,_,$*).sh $(BUILD) $(if $(filter %-smollm2,$*),"$(MODEL)")
test test-long: %:
	@.make/deps.sh --if-missing
	@$(if $(filter test-long,$*),.make/deps.sh --long --if-missing)
	@.make/progress.sh $(BUILD) $(parallel_make) test-programs
	@$(parallel_make) run-$*

# A build for other machines: their processors may lack instructions of this one, so it is separate.
bundle:
	@.make/deps.sh --if-missing
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/portable bundle-programs \
	  MARCH=$(if $(filter command% environment%,$(origin MARCH)),$(MARCH),x86-64-v3) \
	  CUDA_ARCHS="$(or $(CUDA_ARCHS),all)"
	@.make/bundle.sh $(BUILD)/portable $(BUILD)

# --- features ---------------------------------------------------------------------------------------
ifdef NEEDS_FEATURES
  include $(BUILD)/features.mk
endif

# `make install` installs what was built: a quickstart may have left CUDA out (see without_gpu).
ifeq ($(origin CUDA_HOME)/$(filter install,$(MAKECMDGOALS)),undefined/install)
  ifneq ($(wildcard $(BUILD)/choir),)
    as_built := $(if $(shell grep -s 'CUDA_HOME="none"' $(BUILD)/asked),CUDA_HOME=none)
  endif
endif

# write_changed FILE,TEXT: an unchanged file keeps its time, and targets that depend on it are not
# rebuilt.
write_changed = mkdir -p $(dir $(1)) && printf '%s\n' '$(2)' | cmp -s - $(1) || printf '%s\n' '$(2)' > $(1)
ASKED := MPICXX="$(MPICXX)" MARCH="$(MARCH)" HDF5="$(HDF5)" BLAS_DIR="$(BLAS_DIR)" ONEDNN="$(ONEDNN)" \
  CUDA_HOME="$(CUDA_HOME)" CUDNN_HOME="$(CUDNN_HOME)" NCCL_HOME="$(NCCL_HOME)"
# Written whenever a makefile is read, not by rules: `make --dry-run` must know what a build would do.
ifdef NEEDS_FEATURES
  $(shell $(call write_changed,$(BUILD)/asked,$(ASKED)))
endif
$(BUILD)/features.mk: .make/features.sh $(BUILD)/asked
	@$(ASKED) .make/features.sh $(BUILD)

# The revision is looked up on every build and written only when it changed.
ifdef NEEDS_FEATURES
  REVISION := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
  $(shell $(call write_changed,$(BUILD)/choir_revision.hpp,$(HASH)define CHOIR_BUILD_REVISION "$(REVISION)"))
endif
$(BUILD)/obj/src/core/build_info.o: $(BUILD)/choir_revision.hpp

# The search for libraries has just printed its list if make has started again after it.
features:
	@[ -n "$(MAKE_RESTARTS)" ] && [ -n "$$(find $(BUILD)/features.txt -mmin -2)" ] || cat $(BUILD)/features.txt

include .make/program.mk .make/tests.mk .make/emulated_gpu.mk .make/fuzz.mk

.PHONY: run-test run-test-long test-programs
# TESTS=program: tests that can differ in a program built without CUDA.
test-programs: $(addprefix $(BUILD)/,choir choir_host_cuda test_unit test_mpi $(if $(CUDA),test_cuda) \
  $(if $(filter program,$(TESTS)),,choir_toy choir_mutants libchoir.a choir.pc drawn_decks test_host_cuda_plain test_host_cuda_address \
  test_host_cuda_thread test_host_cuda_mpi))
.PHONY: bundle-programs
bundle-programs: $(BUILD)/choir $(BUILD)/test_unit $(BUILD)/test_mpi $(if $(CUDA),$(BUILD)/test_cuda)
run-test: layers style test-programs
	@test/run_all.sh $(BUILD) $(if $(filter program,$(TESTS)),--program)
run-test-long: layers style test-programs
	@test/run_all.sh $(BUILD) --long

# The text that the shipped decks name: tiny Shakespeare, or without a network the King James Bible.
data-quickstart:
	@.make/quickstart.sh --text
data-shakespeare:
	@.make/data_shakespeare.sh

INSTALLED := $(addprefix $(BUILD)/,choir libchoir.a choir.pc)
install: $(if $(filter-out install,$(MAKECMDGOALS)),$(INSTALLED))
	@$(if $(as_built),echo "install: $(BUILD)/choir was built without CUDA and is installed so; CUDA_HOME=DIR adds it")
	+@$(if $(filter-out install,$(MAKECMDGOALS)),:,.make/progress.sh $(BUILD) $(MAKE) --no-print-directory $(all_cores) $(as_built) $(INSTALLED))
	@DESTDIR="$(DESTDIR)" .make/install.sh $(BUILD) "$(or $(PREFIX),/usr/local)"

layers:
	@.make/layers.sh
style:
	@.make/style.sh
house:
	@.make/house.sh

clean:
	rm -rf $(BUILD)

-include $(shell [ -d $(BUILD)/obj ] && find $(BUILD) -name '*.d')
