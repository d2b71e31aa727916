# choir: `make` builds build/choir from what this machine has and says what it found.
#
#   make                 the program (CPU; CUDA is added when a toolkit is found)
#   make quickstart      build, get a text, train a small GPT on 2 ranks, generate
#   make test            build and run every test; last line "N passed, N failed"
#   make deps            install the Debian packages (apt); PREFIX=DIR unpacks them without root
#   make help            everything else
#
# Where things are, if not where pkg-config says: MPICXX HDF5 BLAS_DIR ONEDNN CUDA_HOME.
# MARCH=native is for this machine; MARCH=x86-64-v3 for any since 2015. DEBUG=1, SANITIZE=address,undefined.

BUILD   ?= build
MPICXX  ?= mpicxx
MARCH   ?= native
SHELL   := /bin/bash
MAKEFLAGS += --no-builtin-rules
.DELETE_ON_ERROR:
.SECONDARY:

.DEFAULT_GOAL := all

# --- goals that must work before anything is installed ---------------------------------------------
SETUP_GOALS := deps help clean data-shakespeare layers style quickstart test test-long
ifneq ($(filter-out $(SETUP_GOALS),$(or $(MAKECMDGOALS),all)),)
  NEEDS_FEATURES := 1
endif

.PHONY: all deps help clean features quickstart test test-long layers style data-shakespeare
help:
	@sed -n '3,12p' Makefile | sed 's/^# \{0,1\}//'
	@echo "  make test-long       the slow tests: fault loops, sanitizers, exhaustive grids"
	@echo "  make layers style    the house rules: who may include whom; file sizes and names"
	@echo "  make clean           removes $(BUILD)"

deps:
	@.make/deps.sh "$(PREFIX)"

quickstart test test-long: %:
	@.make/deps.sh --if-missing
	@$(MAKE) --no-print-directory run-$*

# --- features ---------------------------------------------------------------------------------------
ifdef NEEDS_FEATURES
  include $(BUILD)/features.mk
endif

$(BUILD)/features.mk: .make/features.sh
	@mkdir -p $(BUILD)
	@MPICXX="$(MPICXX)" MARCH="$(MARCH)" HDF5="$(HDF5)" BLAS_DIR="$(BLAS_DIR)" ONEDNN="$(ONEDNN)" \
	  CUDA_HOME="$(CUDA_HOME)" .make/features.sh $(BUILD)

# The revision is looked up on every build and written only when it changed.
.PHONY: always
$(BUILD)/choir_revision.hpp: always
	@mkdir -p $(BUILD)
	@printf '#pragma once\n// Written by make.\n#define CHOIR_BUILD_REVISION "%s"\n' \
	  "$$(git describe --always --dirty 2>/dev/null || echo unknown)" > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(BUILD)/obj/src/train/build_info.o: $(BUILD)/choir_revision.hpp

features:
	@cat $(BUILD)/features.txt

# --- program ----------------------------------------------------------------------------------------
OPTIMISE := $(if $(DEBUG),-O1 -g,-O3)
SANITIZER := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer -g)
WARNINGS := -Wall -Wextra -Wshadow -Wpedantic -Wno-restrict -Wno-missing-field-initializers $(if $(WERROR),-Werror)
CXXFLAGS += -std=c++20 $(OPTIMISE) -march=$(MARCH) -fopenmp -fno-math-errno -fno-trapping-math \
            $(SANITIZER) $(WARNINGS) -MMD -MP
CPPFLAGS += -Iinclude -I. -I$(BUILD) $(FEATURE_CPPFLAGS)
LDLIBS   += $(FEATURE_LIBS)
# Kernels are written for the widest vectors the processor has.
KERNEL_FLAGS := $(KERNEL_VECTOR_FLAGS)

SOURCES := $(filter-out src/app/main.cpp,$(shell find src -name '*.cpp' | sort))
KERNELS := $(sort $(wildcard kernels/*.cpp))
OBJECTS := $(SOURCES:%.cpp=$(BUILD)/obj/%.o) $(KERNELS:%.cpp=$(BUILD)/obj/%.o)

all: $(BUILD)/choir

$(BUILD)/choir: $(BUILD)/obj/src/app/main.o $(OBJECTS)
	@echo "  link  $@"
	@$(MPICXX) $(CXXFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/obj/kernels/%.o: kernels/%.cpp
	@mkdir -p $(@D)
	@echo "  c++   $<"
	@$(MPICXX) $(CPPFLAGS) $(CXXFLAGS) $(KERNEL_FLAGS) -c -o $@ $<

$(BUILD)/obj/%.o: %.cpp
	@mkdir -p $(@D)
	@echo "  c++   $<"
	@$(MPICXX) $(CPPFLAGS) $(CXXFLAGS) -c -o $@ $<

# --- tests ------------------------------------------------------------------------------------------
# One program for the tests of a single rank, one for those of several; each module has a folder.
# ONLY=core,device restricts both to these modules (and links just the same).
MODULES := $(if $(ONLY),$(shell echo $(ONLY) | tr ',' ' '),*)
UNIT_TESTS := $(sort $(wildcard $(MODULES:%=test/unit/%/*.cpp)))
MPI_TESTS  := $(sort $(wildcard $(MODULES:%=test/mpi/%/*.cpp)))
SUPPORT    := $(sort $(wildcard test/support/*.cpp))
TEST_LIBS  := $(GTEST_LIBS)

$(BUILD)/test_unit: $(UNIT_TESTS:%.cpp=$(BUILD)/obj/%.o) $(SUPPORT:%.cpp=$(BUILD)/obj/%.o) $(OBJECTS)
	@echo "  link  $@"
	@$(MPICXX) $(CXXFLAGS) $(LDFLAGS) -o $@ $^ $(TEST_LIBS) $(LDLIBS)
$(BUILD)/test_mpi: $(MPI_TESTS:%.cpp=$(BUILD)/obj/%.o) $(SUPPORT:%.cpp=$(BUILD)/obj/%.o) $(OBJECTS)
	@echo "  link  $@"
	@$(MPICXX) $(CXXFLAGS) $(LDFLAGS) -o $@ $^ $(TEST_LIBS) $(LDLIBS)

.PHONY: run-test run-test-long run-quickstart test-programs
test-programs: $(BUILD)/choir $(BUILD)/test_unit $(BUILD)/test_mpi
run-test: layers style test-programs
	@test/run_all.sh $(BUILD)
run-test-long: layers style test-programs
	@test/run_all.sh $(BUILD) --long
run-quickstart: $(BUILD)/choir
	@.make/quickstart.sh $(BUILD)

data-shakespeare:
	@.make/data_shakespeare.sh

layers:
	@.make/layers.sh
style:
	@.make/style.sh

clean:
	rm -rf $(BUILD)

-include $(shell [ -d $(BUILD)/obj ] && find $(BUILD)/obj -name '*.d')
