# choir: `make` builds build/choir from what this machine has and says what it found.
#
#   make                 the program (CPU; CUDA is added when a toolkit is found)
#   make quickstart      build, get a text, train a small GPT on 2 ranks, generate
#   make quickstart-speech  build, make corpora of speech, train recognisers on 2 ranks, transcribe
#   make test            build and run every test; last line "N passed, N failed"
#   make deps            install the Debian packages (apt); PREFIX=DIR unpacks them without root
#   make help            everything else
#
# Where things are, if not where pkg-config says: MPICXX HDF5 BLAS_DIR ONEDNN CUDA_HOME CUDNN_HOME
# NCCL_HOME (CUDA_HOME=none builds without CUDA).
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
SETUP_GOALS := deps deps-speech help clean data-shakespeare layers style quickstart quickstart-speech test \
  test-long bundle
ifneq ($(filter-out $(SETUP_GOALS),$(or $(MAKECMDGOALS),all)),)
  NEEDS_FEATURES := 1
endif

.PHONY: all deps deps-speech help clean features quickstart quickstart-speech test test-long bundle layers style data-shakespeare
help:
	@sed -n '3,14p' Makefile | sed 's/^# \{0,1\}//'
	@echo "  make test-long       the slow tests: fault loops, sanitizers, exhaustive grids"
	@echo "  make deps-speech     recorded prompts for 'choir prepare corpus asterisk' (apt)"
	@echo "  make fuzz            the programs that test/run/long/fuzz.sh runs (Clang: .make/deps.sh --fuzz)"
	@echo "  make bundle          everything that another machine needs to run it, in one file"
	@echo "  make layers style    the house rules: who may include whom; file sizes and names"
	@echo "  make clean           removes $(BUILD)"

deps:
	@.make/deps.sh "$(PREFIX)"
# Recorded speech for `choir prepare corpus asterisk`; make test does without it.
deps-speech:
	@.make/deps.sh --speech "$(PREFIX)"

quickstart quickstart-speech test test-long: %:
	@.make/deps.sh --if-missing
	@$(if $(filter test-long,$*),.make/deps.sh --long --if-missing)
	@$(MAKE) --no-print-directory -j$$(nproc) run-$*

# For other machines: their processor may lack what this one has, so a build of its own.
bundle:
	@.make/deps.sh --if-missing
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/portable bundle-programs \
	  MARCH=$(if $(filter command% environment%,$(origin MARCH)),$(MARCH),x86-64-v3)
	@.make/bundle.sh $(BUILD)/portable $(BUILD)

# --- features ---------------------------------------------------------------------------------------
ifdef NEEDS_FEATURES
  include $(BUILD)/features.mk
endif

$(BUILD)/features.mk: .make/features.sh
	@mkdir -p $(BUILD)
	@MPICXX="$(MPICXX)" MARCH="$(MARCH)" HDF5="$(HDF5)" BLAS_DIR="$(BLAS_DIR)" ONEDNN="$(ONEDNN)" \
	  CUDA_HOME="$(CUDA_HOME)" \
	  CUDNN_HOME="$(CUDNN_HOME)" NCCL_HOME="$(NCCL_HOME)" .make/features.sh $(BUILD)

# The revision is looked up on every build and written only when it changed.
.PHONY: always
$(BUILD)/choir_revision.hpp: always
	@mkdir -p $(BUILD)
	@printf '#pragma once\n// Written by make.\n#define CHOIR_BUILD_REVISION "%s"\n' \
	  "$$(git describe --always --dirty 2>/dev/null || echo unknown)" > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(BUILD)/obj/src/train/engine/build_info.o: $(BUILD)/choir_revision.hpp

features:
	@cat $(BUILD)/features.txt

# --- program ----------------------------------------------------------------------------------------
OPTIMISE := $(if $(SANITIZE),-O0,$(if $(DEBUG),-O1 -g,-O3))
# Sanitized: every finding ends the program, the standard library checks its bounds too, and only the kernels are
# optimised, with lines as all that a debugger gets: the whole takes a third of the time to build that -O1 -g takes.
SANITIZER := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1 \
  -D_GLIBCXX_ASSERTIONS)
WARNINGS := -Wall -Wextra -Wshadow -Wpedantic -Wno-restrict -Wno-missing-field-initializers $(if $(WERROR),-Werror)
CXXFLAGS += -std=c++20 $(OPTIMISE) -march=$(MARCH) -fopenmp -fno-math-errno -fno-trapping-math \
            $(SANITIZER) $(WARNINGS) -MMD -MP
CPPFLAGS += -Iinclude -I. -I$(BUILD) $(FEATURE_CPPFLAGS)
LDLIBS   += $(FEATURE_LIBS)
# Kernels are written for the widest vectors the processor has.
KERNEL_FLAGS := $(KERNEL_VECTOR_FLAGS) $(if $(SANITIZE),-O1)

SOURCES := $(filter-out src/app/main.cpp,$(shell find src -name '*.cpp' | sort))
KERNELS := $(sort $(shell find kernels -name '*.cpp'))
# What only a build with CUDA contains, and what stands in for it in one without.
CUDA_SOURCES := $(filter src/%,$(foreach s,$(SOURCES),$(if $(findstring /cuda/,$s),$s))) $(filter kernels/cuda/%,$(KERNELS))
ABSENT       := $(filter %cuda_absent.cpp,$(SOURCES) $(KERNELS))
CUDA_KERNELS := $(sort $(wildcard kernels/*.cu))
COMMON       := $(filter-out $(CUDA_SOURCES) $(ABSENT),$(SOURCES) $(KERNELS))
COMMON_OBJECTS := $(COMMON:%.cpp=$(BUILD)/obj/%.o)
ifneq ($(CUDA),)
  CUDA_OBJECTS := $(CUDA_SOURCES:%.cpp=$(BUILD)/obj/%.o) $(CUDA_KERNELS:%.cu=$(BUILD)/obj/%.cu.o)
  CUDA_LIBS    := -L$(CUDA)/lib64 -lcudart_static -ldl -lrt -lpthread
else
  CUDA_OBJECTS := $(ABSENT:%.cpp=$(BUILD)/obj/%.o)
endif
OBJECTS := $(COMMON_OBJECTS) $(CUDA_OBJECTS)
LDLIBS  += $(CUDA_LIBS)

all: $(BUILD)/choir

$(BUILD)/choir: $(BUILD)/obj/src/app/main.o $(OBJECTS)
	@echo "  link  $@"
	@$(MPICXX) $(CXXFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# Device code for the two generations of data-centre GPUs, and PTX for those that come after. fmt's
# compile-time checks are beyond nvcc; constexpr functions (std::array's) are device functions too.
NVCC_FLAGS := -std=c++20 -O3 --expt-relaxed-constexpr $(if $(DEBUG),-lineinfo) --threads 2 -Xfatbin -compress-all \
  -gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_90a,code=sm_90a \
  -Werror all-warnings -Xcompiler -Wall,-Wextra,-fopenmp -DFMT_USE_CONSTEXPR=1 -Xptxas -v
$(BUILD)/obj/kernels/%.cu.o: kernels/%.cu
	@mkdir -p $(@D)
	@echo "  nvcc  $<"
	@$(CUDA)/bin/nvcc $(CPPFLAGS) $(NVCC_FLAGS) -MD -MP -c -o $@ $< > $@.log 2>&1 || { cat $@.log; exit 1; }
$(BUILD)/obj/src/%.o: CPPFLAGS += $(if $(findstring /cuda/,$@),$(CUDA_CPPFLAGS))
$(BUILD)/obj/kernels/cuda/%.o: CPPFLAGS += $(CUDA_CPPFLAGS)

$(BUILD)/obj/kernels/%.o: kernels/%.cpp
	@mkdir -p $(@D)
	@echo "  c++   $<"
	@$(MPICXX) $(CPPFLAGS) $(CXXFLAGS) $(KERNEL_FLAGS) -c -o $@ $<

$(BUILD)/obj/%.o: %.cpp
	@mkdir -p $(@D)
	@echo "  c++   $<"
	@$(MPICXX) $(CPPFLAGS) $(CXXFLAGS) -c -o $@ $<

# Tests build in half the time: with the headers they share read once, and their own loops, of which little depends,
# optimised less than the program's (at which GCC 12 sees std::string's own copies go out of bounds).
PRELUDE := $(BUILD)/prelude/prelude.hpp
$(BUILD)/obj/test/%.o $(PRELUDE).gch: OPTIMISE := $(if $(SANITIZE),-O0,-O1 $(if $(DEBUG),-g))
$(BUILD)/obj/test/%.o: WARNINGS += -Wno-array-bounds -Wno-stringop-overflow
$(PRELUDE).gch: test/support/prelude.hpp
	@mkdir -p $(@D)
	@echo "  c++   $<"
	@cp $< $(PRELUDE)
	@$(MPICXX) $(CPPFLAGS) $(CXXFLAGS) -MT $@ -MF $(@D)/prelude.d -w -x c++-header -c -o $@ $<
$(BUILD)/obj/test/%.o: test/%.cpp | $(PRELUDE).gch
	@mkdir -p $(@D)
	@echo "  c++   $<"
	@$(MPICXX) $(CPPFLAGS) $(CXXFLAGS) -include $(PRELUDE) -c -o $@ $<

# --- tests ------------------------------------------------------------------------------------------
# One program for the tests of a single rank, one for those of several; each module has a folder.
# ONLY=core,device restricts both to these modules (and links just the same).
MODULES := $(if $(ONLY),$(shell echo $(ONLY) | tr ',' ' '),*)
UNIT_TESTS := $(sort $(wildcard $(MODULES:%=test/unit/%/*.cpp) $(MODULES:%=test/unit/%/*/*.cpp)))
MPI_TESTS  := $(sort $(wildcard $(MODULES:%=test/mpi/%/*.cpp)) $(wildcard test/mpi_cuda/*.cpp))
SUPPORT    := $(sort $(wildcard test/support/*.cpp))
TEST_LIBS  := $(GTEST_LIBS)

$(BUILD)/test_unit: $(UNIT_TESTS:%.cpp=$(BUILD)/obj/%.o) $(SUPPORT:%.cpp=$(BUILD)/obj/%.o) $(OBJECTS)
	@echo "  link  $@"
	@$(MPICXX) $(CXXFLAGS) $(LDFLAGS) -o $@ $^ $(TEST_LIBS) $(LDLIBS)
# The tests of the cuda device, twice: on a GPU, and on the CPU, where the same device code is
# compiled by the host compiler and executed under test/host_cuda (no toolkit needed).
CUDA_TESTS := $(sort $(wildcard $(MODULES:%=test/cuda/%*.cpp)))
HOST_CUDA  := $(sort $(wildcard test/host_cuda/*.cpp))
# Counting allocations replaces operator new, which AddressSanitizer does itself.
HOST_SUPPORT := $(filter-out %count_allocations.cpp,$(SUPPORT))
HOST_CUDA_TESTS := $(sort $(wildcard test/host_cuda/test/*.cpp))
$(BUILD)/test_cuda: $(CUDA_TESTS:%.cpp=$(BUILD)/obj/%.o) $(SUPPORT:%.cpp=$(BUILD)/obj/%.o) $(OBJECTS)
	@echo "  link  $@"
	@$(MPICXX) $(CXXFLAGS) $(LDFLAGS) -o $@ $^ $(TEST_LIBS) $(LDLIBS)

# HOST_VARIANT: plain, address (ASan and UBSan) or thread (TSan). Only device code, its launchers and
# what executes them are instrumented; for threads the scheduler itself must not be.
HOST_FLAGS_plain   := -O2
HOST_FLAGS_address := -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -DHOST_CUDA_MALLOC
HOST_FLAGS_thread  := -O1 -g1 -fsanitize=thread -DHOST_CUDA_TSAN -DHOST_CUDA_MALLOC
HOST_WARNINGS := -Wall -Wextra -Wno-unknown-pragmas $(if $(WERROR),-Werror)
HOST_CUDA_SOURCES := $(filter-out kernels/cuda/%,$(filter-out $(HOST_CUDA_NEVER),$(CUDA_SOURCES)))
define host_variant
HOST_OBJECTS_$(1) := $(HOST_CUDA_SOURCES:%.cpp=$(BUILD)/host_$(1)/%.o) $(CUDA_KERNELS:%.cu=$(BUILD)/host_$(1)/%.cu.o) \
  $(HOST_CUDA:%.cpp=$(BUILD)/host_$(1)/%.o)
$(BUILD)/host_$(1)/test/host_cuda/%.o: test/host_cuda/%.cpp
	@mkdir -p $$(@D)
	@echo "  host  $$< ($(1))"
	@$(MPICXX) -Itest/host_cuda/include $$(CPPFLAGS) -std=c++20 $$(HOST_WARNINGS) $$(filter-out -fsanitize=thread,$(HOST_FLAGS_$(1))) -MMD -MP -c -o $$@ $$<
$(BUILD)/host_$(1)/%.cu.o: %.cu
	@mkdir -p $$(@D)
	@echo "  host  $$< ($(1))"
	@$(MPICXX) -Itest/host_cuda/include $$(CPPFLAGS) -std=c++20 $$(HOST_WARNINGS) $(HOST_FLAGS_$(1)) -MMD -MP -x c++ -c -o $$@ $$<
$(BUILD)/host_$(1)/%.o: %.cpp
	@mkdir -p $$(@D)
	@echo "  host  $$< ($(1))"
	@$(MPICXX) -Itest/host_cuda/include $$(CPPFLAGS) -std=c++20 $$(HOST_WARNINGS) $(HOST_FLAGS_$(1)) -MMD -MP -c -o $$@ $$<
$(BUILD)/test_host_cuda_$(1): $$(HOST_OBJECTS_$(1)) $(CUDA_TESTS:%.cpp=$(BUILD)/obj/%.o) \
    $(HOST_CUDA_TESTS:%.cpp=$(BUILD)/host_$(1)/%.o) $(HOST_SUPPORT:%.cpp=$(BUILD)/obj/%.o) $(COMMON_OBJECTS)
	@echo "  link  $$@"
	@$(MPICXX) $$(CXXFLAGS) $$(LDFLAGS) $$(filter -fsanitize=%,$(HOST_FLAGS_$(1))) -o $$@ $$^ $$(TEST_LIBS) $$(filter-out $$(CUDA_LIBS),$$(LDLIBS)) -lpthread -ldl
endef
$(foreach variant,plain address thread,$(eval $(call host_variant,$(variant))))

# The program, and tests of several ranks, on the GPU that is not there. NCCL is played by a library
# of ours, which is opened as the real one is and queues its work on the same streams.
MPI_CUDA_TESTS := $(sort $(wildcard test/mpi_cuda/*.cpp))
$(BUILD)/choir_host_cuda: $(BUILD)/obj/src/app/main.o $(HOST_OBJECTS_plain) $(COMMON_OBJECTS) | $(BUILD)/libnccl_fake.so
	@echo "  link  $@"
	@$(MPICXX) $(CXXFLAGS) $(LDFLAGS) -rdynamic -o $@ $^ $(filter-out $(CUDA_LIBS),$(LDLIBS)) -lpthread -ldl
$(BUILD)/test_host_cuda_mpi: $(MPI_CUDA_TESTS:%.cpp=$(BUILD)/obj/%.o) $(SUPPORT:%.cpp=$(BUILD)/obj/%.o) \
    $(HOST_OBJECTS_plain) $(COMMON_OBJECTS) | $(BUILD)/libnccl_fake.so
	@echo "  link  $@"
	@$(MPICXX) $(CXXFLAGS) $(LDFLAGS) -rdynamic -o $@ $^ $(TEST_LIBS) $(filter-out $(CUDA_LIBS),$(LDLIBS)) -lpthread -ldl
$(BUILD)/libnccl_fake.so: test/host_cuda/nccl/nccl_fake.cpp
	@echo "  link  $@"
	@$(MPICXX) -Itest/host_cuda/include $(CPPFLAGS) -std=c++20 $(HOST_WARNINGS) -O2 -fPIC -shared -MMD -MP -MT $@ \
	  -MF $(BUILD)/host_plain/nccl_fake.d -o $@ $< -lfmt -lrt

# The test program of a variant with some launchers compiled from changed kernels (test/host_cuda/mutate.sh).
.PHONY: mutant
mutant: $(BUILD)/test_host_cuda_$(VARIANT)
	@for source in $(MUTATED); do mkdir -p $(MUTANTS)/objects; \
	  $(MPICXX) -I$(MUTANTS) -Itest/host_cuda/include $(CPPFLAGS) -std=c++20 -w $(HOST_FLAGS_$(VARIANT)) \
	    -x c++ -c -o $(MUTANTS)/objects/$$(basename $$source).o $$source || exit 1; done
	@$(MPICXX) $(CXXFLAGS) $(LDFLAGS) $(filter -fsanitize=%,$(HOST_FLAGS_$(VARIANT))) -o $(MUTANTS)/program \
	  $(MUTANTS)/objects/*.o $(filter-out $(MUTATED:%=$(BUILD)/host_$(VARIANT)/%.o),$(HOST_OBJECTS_$(VARIANT))) \
	  $(CUDA_TESTS:%.cpp=$(BUILD)/obj/%.o) $(HOST_CUDA_TESTS:%.cpp=$(BUILD)/host_$(VARIANT)/%.o) \
	  $(HOST_SUPPORT:%.cpp=$(BUILD)/obj/%.o) $(COMMON_OBJECTS) $(TEST_LIBS) $(filter-out $(CUDA_LIBS),$(LDLIBS)) -lpthread -ldl

$(BUILD)/test_mpi: $(MPI_TESTS:%.cpp=$(BUILD)/obj/%.o) $(SUPPORT:%.cpp=$(BUILD)/obj/%.o) $(OBJECTS)
	@echo "  link  $@"
	@$(MPICXX) $(CXXFLAGS) $(LDFLAGS) -o $@ $^ $(TEST_LIBS) $(LDLIBS)

# Programs of libFuzzer, one a file of test/fuzz: with Clang, and instrumented where what the input
# reaches is written; the rest are the objects of the program itself, as they are. Of a processor of
# 2015, as the sanitized build. FUZZ=deck,archive: only these.
CLANGXX ?= clang++
FUZZ_TARGETS := $(if $(FUZZ),$(shell echo $(FUZZ) | tr ',' ' '),$(basename $(notdir $(wildcard test/fuzz/*.cpp))))
FUZZED := $(addprefix src/core/,crc32c dtype error json json_extent key_table key_table_print key_value tensor text) \
  $(addprefix src/data/,posix_file utf8 whole_file spoken/spoken_wav speech/label_file speech/speech_mix) \
  $(filter-out %/audio_report %/prepare_audio,$(basename $(wildcard src/data/audio/*.cpp))) \
  $(addprefix src/data/text/,subword_base64 subword_model text_units tokenizer) \
  $(addprefix src/data/tokens/,megatron_index token_file token_stream) \
  $(addprefix src/checkpoint/,directory manifest open slab_io state_file) \
  $(basename $(wildcard src/train/deck/*.cpp))
FUZZ_FLAGS := -fsanitize=address,undefined -fno-sanitize-recover=undefined
$(BUILD)/fuzz/obj/%.o: %.cpp
	@mkdir -p $(@D)
	@echo "  clang $<"
	@$(CLANGXX) -isystem test/fuzz/include $(CPPFLAGS) -std=c++20 -O1 -gline-tables-only -march=x86-64-v3 -fno-math-errno \
	  -fno-omit-frame-pointer $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link -w -MMD -MP -c -o $@ $<
$(BUILD)/fuzz/libfuzzed.a: $(FUZZED:%=$(BUILD)/fuzz/obj/%.o)
	@rm -f $@ && ar rcs $@ $^
$(BUILD)/fuzz/libplain.a: $(OBJECTS)
	@mkdir -p $(@D)
	@rm -f $@ && ar rcsT $@ $^
$(FUZZ_TARGETS:%=$(BUILD)/fuzz/%): $(BUILD)/fuzz/%: $(BUILD)/fuzz/obj/test/fuzz/%.o $(BUILD)/fuzz/libfuzzed.a $(BUILD)/fuzz/libplain.a
	@echo "  link  $@"
	@$(CLANGXX) $(FUZZ_FLAGS) -fsanitize=fuzzer -o $@ $^ $(LDFLAGS) $(LDLIBS) -lgomp
.PHONY: fuzz
fuzz: $(FUZZ_TARGETS:%=$(BUILD)/fuzz/%)

.PHONY: run-test run-test-long run-quickstart run-quickstart-speech test-programs
# TESTS=program: what can differ in a program built without CUDA.
test-programs: $(BUILD)/choir $(BUILD)/test_unit $(BUILD)/test_mpi $(if $(CUDA),$(BUILD)/test_cuda) \
  $(if $(filter program,$(TESTS)),,$(BUILD)/test_host_cuda_plain $(BUILD)/test_host_cuda_address \
  $(BUILD)/test_host_cuda_thread $(BUILD)/test_host_cuda_mpi) $(BUILD)/choir_host_cuda
.PHONY: bundle-programs
bundle-programs: $(BUILD)/choir $(BUILD)/test_unit $(BUILD)/test_mpi $(if $(CUDA),$(BUILD)/test_cuda)
run-test: layers style test-programs
	@test/run_all.sh $(BUILD) $(if $(filter program,$(TESTS)),--program)
run-test-long: layers style test-programs
	@test/run_all.sh $(BUILD) --long
run-quickstart: $(BUILD)/choir
	@.make/quickstart.sh $(BUILD)
run-quickstart-speech: $(BUILD)/choir
	@.make/quickstart_speech.sh $(BUILD)

data-shakespeare:
	@.make/data_shakespeare.sh

layers:
	@.make/layers.sh
style:
	@.make/style.sh

clean:
	rm -rf $(BUILD)

-include $(shell [ -d $(BUILD)/obj ] && find $(BUILD) -name '*.d')
