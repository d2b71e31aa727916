# The device code on the CPU: the host compiler compiles it, and test/host_cuda executes it (no
# toolkit needed).

# The tests of the cuda device, twice: on a GPU, and on the CPU, where the host compiler compiles
# the same device code and test/host_cuda executes it (no toolkit needed).
CUDA_TESTS := $(sort $(wildcard $(MODULES:%=test/cuda/%*.cpp)))
CUDA_TEST_OBJECTS := $(call objects,$(CUDA_TESTS))
HOST_CUDA  := $(sort $(wildcard test/host_cuda/*.cpp))
# Counting allocations replaces operator new, which AddressSanitizer does itself.
HOST_SUPPORT := $(filter-out %count_allocations.cpp,$(SUPPORT))
HOST_CUDA_TESTS := $(sort $(wildcard test/host_cuda/test/*.cpp))
$(BUILD)/test_cuda: $(CUDA_TEST_OBJECTS) $(SUPPORT:%.cpp=$(BUILD)/obj/%.o) $(OBJECTS)
	@$(call link,$(TEST_LIBS) $(LDLIBS))

# HOST_VARIANT: plain, address (ASan and UBSan) or thread (TSan). Only device code, its launchers
# and their execution are instrumented; for threads the scheduler itself must not be, and the
# switching of threads, which touches no memory of the kernels, never is.
HOST_FLAGS_plain   := -O2
HOST_FLAGS_address := -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -DHOST_CUDA_MALLOC -DHOST_CUDA_BLACKWELL
HOST_FLAGS_thread  := -O1 -g1 -fsanitize=thread -DHOST_CUDA_TSAN -DHOST_CUDA_MALLOC
# Tensor maps are arguments aligned to 64 bytes, for which GCC prints a note about its ABI of 2010.
HOST_WARNINGS := -Wall -Wextra -Wno-unknown-pragmas -Wno-psabi $(if $(WERROR),-Werror)
HOST_CUDA_SOURCES := $(filter-out kernels/%,$(filter-out $(HOST_CUDA_NEVER),$(CUDA_SOURCES)))
# host_kernel VARIANT: compiles device code of the tree, or of a source that make wrote (program.mk).
define host_kernel
@mkdir -p $(@D)
@echo "  host  $< ($(1))"
@$(MPICXX) -Itest/host_cuda/include $(CPPFLAGS) -std=c++20 $(HOST_WARNINGS) $(HOST_FLAGS_$(1)) -MMD -MP -x c++ -c -o $@ $<
endef
define host_variant
HOST_OBJECTS_$(1) := $(HOST_CUDA_SOURCES:%.cpp=$(BUILD)/host_$(1)/%.o) $(CUDA_KERNELS:%.cu=$(BUILD)/host_$(1)/%.cu.o) \
  $(HOST_CUDA:%.cpp=$(BUILD)/host_$(1)/%.o)
$(BUILD)/host_$(1)/test/host_cuda/%.o: test/host_cuda/%.cpp
	@mkdir -p $$(@D)
	@echo "  host  $$< ($(1))"
	@$(MPICXX) -Itest/host_cuda/include $$(CPPFLAGS) -std=c++20 $$(HOST_WARNINGS) $$(if $$(filter block,$$*),-O2 $(filter -D%,$(HOST_FLAGS_$(1))),$$(filter-out -fsanitize=thread,$(HOST_FLAGS_$(1)))) -MMD -MP -c -o $$@ $$<
$(BUILD)/host_$(1)/%.cu.o: $(BUILD)/%.cu
	$$(call host_kernel,$(1))
$(BUILD)/host_$(1)/%.cu.o: %.cu
	$$(call host_kernel,$(1))
$(BUILD)/host_$(1)/%.o: %.cpp
	@mkdir -p $$(@D)
	@echo "  host  $$< ($(1))"
	@$(MPICXX) -Itest/host_cuda/include $$(CPPFLAGS) -std=c++20 $$(HOST_WARNINGS) $(HOST_FLAGS_$(1)) -MMD -MP -c -o $$@ $$<
$(BUILD)/test_host_cuda_$(1): $$(HOST_OBJECTS_$(1)) $(CUDA_TEST_OBJECTS) \
    $(HOST_CUDA_TESTS:%.cpp=$(BUILD)/host_$(1)/%.o) $(HOST_SUPPORT:%.cpp=$(BUILD)/obj/%.o) $(COMMON_OBJECTS)
	@echo "  link  $$@"
	@$(MPICXX) $$(CXXFLAGS) $$(LDFLAGS) $$(filter -fsanitize=%,$(HOST_FLAGS_$(1))) -o $$@ $$^ $$(TEST_LIBS) $$(filter-out $$(CUDA_LIBS),$$(LDLIBS)) -lpthread -ldl
endef
$(foreach variant,plain address thread,$(eval $(call host_variant,$(variant))))

# The program, and tests of several ranks, on the emulated GPU. A library of ours plays NCCL: it is
# opened like the real one and queues its work on the same streams.
MPI_CUDA_TESTS := $(sort $(wildcard test/mpi_cuda/*.cpp))
$(BUILD)/choir_host_cuda: $(MAIN_OBJECTS) $(HOST_OBJECTS_plain) $(COMMON_OBJECTS) | $(BUILD)/libnccl_fake.so
	@echo "  link  $@"
	@$(MPICXX) $(CXXFLAGS) $(LDFLAGS) -rdynamic -o $@ $^ $(filter-out $(CUDA_LIBS),$(LDLIBS)) -lpthread -ldl
$(BUILD)/test_host_cuda_mpi: $(call objects,$(MPI_CUDA_TESTS)) $(SUPPORT:%.cpp=$(BUILD)/obj/%.o) \
    $(HOST_OBJECTS_plain) $(COMMON_OBJECTS) | $(BUILD)/libnccl_fake.so
	@echo "  link  $@"
	@$(MPICXX) $(CXXFLAGS) $(LDFLAGS) -rdynamic -o $@ $^ $(TEST_LIBS) $(filter-out $(CUDA_LIBS),$(LDLIBS)) -lpthread -ldl
$(BUILD)/libnccl_fake.so: test/host_cuda/nccl/nccl_fake.cpp
	@echo "  link  $@"
	@$(MPICXX) -Itest/host_cuda/include $(CPPFLAGS) -std=c++20 $(HOST_WARNINGS) -O2 -fPIC -shared -MMD -MP -MT $@ \
	  -MF $(BUILD)/host_plain/nccl_fake.d -o $@ $< -lfmt -lrt

# The test program of a variant with some launchers compiled from changed kernels (test/host_cuda/mutate.sh). The source of
# a launcher is the changed one if there is one, else that of the tree, else the one that make wrote.
.PHONY: mutant
mutant: $(BUILD)/test_host_cuda_$(VARIANT)
	@for source in $(MUTATED); do mkdir -p $(MUTANTS)/objects; \
	  for text in {$(MUTANTS)/,,$(BUILD)/}$$source; do [ ! -e $$text ] || break; done; \
	  $(MPICXX) -I$(MUTANTS) -Itest/host_cuda/include $(CPPFLAGS) -std=c++20 -w $(HOST_FLAGS_$(VARIANT)) \
	    -x c++ -c -o $(MUTANTS)/objects/$$(basename $$source).o $$text || exit 1; done
	@$(MPICXX) $(CXXFLAGS) $(LDFLAGS) $(filter -fsanitize=%,$(HOST_FLAGS_$(VARIANT))) -o $(MUTANTS)/program \
	  $(MUTANTS)/objects/*.o $(filter-out $(MUTATED:%=$(BUILD)/host_$(VARIANT)/%.o),$(HOST_OBJECTS_$(VARIANT))) \
	  $(CUDA_TEST_OBJECTS) $(HOST_CUDA_TESTS:%.cpp=$(BUILD)/host_$(VARIANT)/%.o) \
	  $(HOST_SUPPORT:%.cpp=$(BUILD)/obj/%.o) $(COMMON_OBJECTS) $(TEST_LIBS) $(filter-out $(CUDA_LIBS),$(LDLIBS)) -lpthread -ldl

# The tests for several GPUs with rules of test/mutants/several_gpus.txt broken (test/run/long/several_gpus.sh): CHOIR_MUTANT
# chooses the rule. Each changed source is compiled alone, and the linker takes the first definition of a function, which is
# that of the changed source, so that nothing else is compiled again.
GPU_MUTANTS := $(BUILD)/several_gpus
GPU_MUTATED := $(shell sed -n 's/^in //p' test/mutants/several_gpus.txt | sort -u)
GPU_MUTANT_OBJECTS := $(GPU_MUTATED:%.cpp=$(GPU_MUTANTS)/%.o)
$(GPU_MUTANTS)/written: test/mutants/several_gpus.txt test/mutants/mutate.sh $(GPU_MUTATED)
	@test/mutants/mutate.sh $(GPU_MUTANTS) test/mutants/several_gpus.txt && touch $@
$(GPU_MUTANT_OBJECTS): $(GPU_MUTANTS)/%.o: $(GPU_MUTANTS)/written test/mutants/mutant.hpp $(BUILD)/prelude/src.hpp.gch
	@echo "  c++   $*.cpp with broken rules"
	@$(MPICXX) $(if $(filter $*.cpp,$(HOST_CUDA_SOURCES)),-Itest/host_cuda/include $(CPPFLAGS) -std=c++20 $(HOST_FLAGS_plain), \
	  -include $(BUILD)/prelude/src.hpp $(CPPFLAGS) $(CXXFLAGS)) -w -include test/mutants/mutant.hpp -c -o $@ $(GPU_MUTANTS)/$*.cpp
$(GPU_MUTANTS)/test_unit: $(GPU_MUTANT_OBJECTS) $(UNIT_OBJECTS) $(OWN_START_OBJECTS)
$(GPU_MUTANTS)/test_plain: $(GPU_MUTANT_OBJECTS) $(BUILD)/host_plain/test/host_cuda/test/streams_test.o
$(GPU_MUTANTS)/test_mpi: $(GPU_MUTANT_OBJECTS) $(call objects,$(MPI_CUDA_TESTS))
$(GPU_MUTANTS)/test_data: $(GPU_MUTANT_OBJECTS) $(call objects,$(filter test/mpi/data/%,$(MPI_TESTS)))
$(addprefix $(GPU_MUTANTS)/test_,unit plain mpi data): $(SUPPORT:%.cpp=$(BUILD)/obj/%.o) $(HOST_OBJECTS_plain) $(COMMON_OBJECTS)
	@echo "  link  $@"
	@$(MPICXX) $(CXXFLAGS) $(LDFLAGS) -rdynamic -Wl,--allow-multiple-definition -o $@ $(GPU_MUTANT_OBJECTS) \
	  $(filter-out $(GPU_MUTANT_OBJECTS),$^) $(TEST_LIBS) $(filter-out $(CUDA_LIBS),$(LDLIBS)) -lpthread -ldl
.PHONY: several-gpus
several-gpus: $(addprefix $(GPU_MUTANTS)/test_,unit plain mpi data) $(BUILD)/libnccl_fake.so
	@ln -sf $(abspath $(BUILD)/libnccl_fake.so) $(GPU_MUTANTS)/
