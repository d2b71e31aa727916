# The program: flags, sources, and how each source is compiled.

OPTIMISE := $(if $(SANITIZE),-O0,$(if $(DEBUG),-O1 -g,-O2))
# Sanitized: every finding ends the program, the standard library also checks its bounds, and only
# the kernels are optimised. Debug information has line numbers only. The whole takes a third of the
# time of a build with -O1 -g.
SANITIZER := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1 \
  -D_GLIBCXX_ASSERTIONS)
# GCC 12 wrongly warns that copies that std::string makes of itself overlap and are out of bounds.
# It collects garbage from 500 MB on, not from 128 MB, which saves 5 % of its time. Clang does not
# know all warnings that are disabled for GCC, and warns of names of one source that are hidden by
# another source compiled together with it.
ifeq ($(COMPILER),clang)
  SILENT := -Wno-unknown-warning-option -Wno-shadow
else
  SILENT := -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread
  HEAP   := --param=ggc-min-heapsize=500000
endif
WARNINGS := -Wall -Wextra -Wshadow -Wpedantic $(SILENT) -Wno-missing-field-initializers $(if $(WERROR),-Werror)
CXXFLAGS += -std=c++20 $(OPTIMISE) -march=$(MARCH) -fopenmp -fno-math-errno -fno-trapping-math \
            $(SANITIZER) $(WARNINGS) $(HEAP) -MMD -MP
CPPFLAGS += -Iinclude -I. -I$(BUILD) $(FEATURE_CPPFLAGS)
LDLIBS   += $(FEATURE_LIBS)
# Kernels are written for the widest vectors of the processor.
KERNEL_FLAGS := $(KERNEL_VECTOR_FLAGS) $(if $(SANITIZE),-O1,$(if $(DEBUG),,-O3))

# Headers, and templates of the standard library that every source instantiates again, are most of a
# compiler's work here, so the sources of a room are compiled together, as in a unity build: names
# in their unnamed namespaces must differ; most collisions are compile errors. UNITY=0 compiles each
# source separately, as do developers who change one often. A local variable may hide a name of
# another source of its group.
GROUP_WARNINGS := -Wno-subobject-linkage -Wno-shadow -Wshadow=local
UNITY_BYTES := $(if $(filter 0,$(UNITY)),0,120000)
# Rooms whose folders count as one. Folders of other rooms are compiled with different flags, or have
# names in common.
WHOLE_ROOMS := $(addprefix src/,core data lab nn optim parallel run store)
# Sources that other programs replace are compiled together, apart from others. Kernels are compiled
# one by one: the instructions that the compiler fuses and inlines in them decide about bits. So are
# sources that most builds compile again.
BROKEN := $(shell sed -n 's/^in //p' test/mutants/rules.txt | sort -u)
ALONE  := kernels/% src/models/families.cpp src/core/build_info.cpp
grouped = $(shell .make/groups.sh $(BUILD)/groups $(UNITY_BYTES) $(1) "$(2)" $(3))
BROKEN_UNITS := $(filter $(ALONE),$(BROKEN)) $(call grouped,broken,src,$(filter-out $(ALONE),$(BROKEN)))
# objects SOURCES, ROOMS: what they become.
objects = $(patsubst %.cpp,$(BUILD)/obj/%.o,$(filter $(ALONE),$(1)) \
  $(call grouped,group,$(2),$(filter-out $(ALONE),$(1))))

# Only programs for users contain these. Builds with a sanitizer do not: it does the same, and
# reserves all addresses.
OWN_START := $(addprefix src/app/,require_addresses.cpp thread_start.cpp)
OWN_START_OBJECTS := $(if $(SANITIZE),,$(OWN_START:%.cpp=$(BUILD)/obj/%.o))
MAIN_OBJECTS := $(BUILD)/obj/src/app/main.o $(OWN_START_OBJECTS)
SOURCES := $(filter-out src/app/main.cpp $(OWN_START),$(shell find src -name '*.cpp' | sort))
KERNELS := $(sort $(shell find kernels -name '*.cpp'))
# Sources that only a build with CUDA contains, and their stand-ins in a build without it.
in_folders = $(foreach s,$(2),$(if $(strip $(foreach folder,$(1),$(findstring /$(folder)/,$s))),$s))
ABSENT       := $(filter %cuda_absent.cpp,$(SOURCES) $(KERNELS))
CUDA_SOURCES := $(filter-out $(ABSENT),$(call in_folders,cuda cudnn nccl,$(SOURCES) $(KERNELS)))
# Attention for 16-bit types is instantiated by sources that make writes, one per half and type, so that nvcc compiles them
# side by side.
ATTENTION_HALVES := forward backward_keys backward_queries hopper_forward hopper_backward
ATTENTION_INSTANCES := $(foreach half,$(ATTENTION_HALVES),$(foreach type,bf16 f16,\
  kernels/attention/cuda/attention_$(half)_$(type).cu))
CUDA_KERNELS := $(sort $(shell find kernels -name '*.cu') $(ATTENTION_INSTANCES))
COMMON       := $(filter-out $(CUDA_SOURCES) $(ABSENT),$(SOURCES) $(KERNELS))
COMMON_OBJECTS := $(call objects,$(filter-out $(BROKEN),$(COMMON)),$(WHOLE_ROOMS)) $(BROKEN_UNITS:%.cpp=$(BUILD)/obj/%.o)
ifneq ($(CUDA),)
  CUDA_OBJECTS := $(call objects,$(CUDA_SOURCES)) $(CUDA_KERNELS:%.cu=$(BUILD)/obj/%.cu.o)
  CUDA_LIBS    := -L$(CUDA)/lib64 -lcudart_static -ldl -lrt -lpthread
else
  CUDA_OBJECTS := $(ABSENT:%.cpp=$(BUILD)/obj/%.o)
endif
OBJECTS := $(COMMON_OBJECTS) $(CUDA_OBJECTS)
# A first build with CUDA takes long, also where a quickstart left the device code out before. A list of features that was found
# for other settings is about to be made again, and says nothing.
UNBUILT_KERNELS := $(if $(CUDA),$(words $(filter-out $(wildcard $(CUDA_KERNELS:%.cu=$(BUILD)/obj/%.cu.o)),$(CUDA_KERNELS:%.cu=$(BUILD)/obj/%.cu.o))),0)
ifneq ($(filter all install,$(or $(MAKECMDGOALS),all)),)
OLD_FEATURES := $(shell [ $(BUILD)/features.mk -ot $(BUILD)/asked ] && echo yes)
ifeq ($(filter 0,$(UNBUILT_KERNELS))$(OLD_FEATURES),)
  $(info choir: CUDA found in $(CUDA): $(UNBUILT_KERNELS) sources of device code are compiled, about a minute each on one core; CUDA_HOME=none leaves them out)
endif
endif
LDLIBS  += $(CUDA_LIBS)

# link LIBRARIES: links the objects on which a program depends.
link = echo "  link  $@" && $(MPICXX) $(CXXFLAGS) $(LDFLAGS) -o $@ $^ $(1)

# Two makes must not compile one object, so only a goal that stands alone has a make of its own.
ifneq ($(filter-out all,$(MAKECMDGOALS)),)
all: $(BUILD)/choir
else
all:
	+@.make/progress.sh $(BUILD) $(MAKE) --no-print-directory $(all_cores) $(BUILD)/choir
endif

# objects.txt lists the objects of the program, for tests that link the same objects.
$(BUILD)/choir: $(MAIN_OBJECTS) $(OBJECTS)
	@$(call link,$(LDLIBS))
	@printf '%s\n' $^ > $(BUILD)/objects.txt

# choir as a library, for programs with families of models of their own: `make install` copies it. The archive has every
# object but that of main(). Objects of other folders have the same names, so they are appended (q), not replaced (r).
# Nothing refers to the objects of the start, so choir.pc names them: from the archive they would not be linked.
$(BUILD)/libchoir.a: $(OBJECTS)
	@echo "  ar    $@"
	@rm -f $@ && ar qcs $@ $^
# choir.pc without its line `prefix=`, which .make/install.sh writes.
PC_CFLAGS := -std=c++20 -I$${includedir} $(FEATURE_CPPFLAGS)
PC_LIBS   := $(OWN_START_OBJECTS:$(BUILD)/obj/src/app/%=$${libdir}/choir/%) -L$${libdir} -lchoir -fopenmp \
  $(if $(SANITIZE),-fsanitize=$(SANITIZE)) $(LDLIBS)
$(BUILD)/choir.pc: $(BUILD)/flags $(BUILD)/features.mk .make/program.mk
	@printf '%s\n' 'includedir=$${prefix}/include' 'libdir=$${prefix}/lib' '' 'Name: choir' \
	  'Description: trains and runs language and speech models on MPI ranks' \
	  "Version: $$(sed -nE 's/.*kVersion = "(.*)";/\1/p' $$(find src -name build_info.hpp))" \
	  'Cflags: $(strip $(PC_CFLAGS))' 'Libs: $(strip $(PC_LIBS))' > $@

# Device code for the chosen GPUs, and PTX of sm_80 for all others. fmt's compile-time checks are beyond nvcc; constexpr
# functions (std::array's) are device functions too. The host compiler is MPI's, as everywhere, and warnings are of
# compilers that come after this was written.
ARCHS := $(if $(filter all,$(CUDA_ARCHS)),$(KNOWN_CUDA_ARCHS),$(or $(CUDA_ARCHS),$(DEFAULT_CUDA_ARCHS)))
NVCC_FLAGS := -std=c++20 -O3 --expt-relaxed-constexpr $(if $(DEBUG),-lineinfo) --threads 2 -Xfatbin -compress-all \
  $(if $(CUDA_HOST_COMPILER),-ccbin $(CUDA_HOST_COMPILER)) \
  $(foreach arch,$(filter-out 80,$(ARCHS)),-gencode arch=compute_$(arch),code=sm_$(arch)) \
  -gencode arch=compute_80,code=[$(if $(filter 80,$(ARCHS)),sm_80$(comma))compute_80] \
  $(if $(WERROR),-Werror all-warnings) -Xcompiler -Wall,-Wextra,-fopenmp -DFMT_USE_CONSTEXPR=1 -Xptxas -v
# Objects for other GPUs are different objects. A dry run (-n) for others leaves those that exist up to date.
ifdef NEEDS_FEATURES
  ifeq ($(and $(findstring n,$(firstword -$(MAKEFLAGS))),$(wildcard $(BUILD)/cuda_archs)),)
    $(shell $(call write_changed,$(BUILD)/cuda_archs,$(ARCHS)))
  endif
endif
# The PTX of sm_80 stays beside the object, for test/run/kernel_instructions.sh.
define nvcc
@mkdir -p $(@D)/$(*F).keep
@echo "  nvcc  $<"
@$(CUDA)/bin/nvcc $(CPPFLAGS) $(NVCC_FLAGS) --keep --keep-dir $(@D)/$(*F).keep -MD -MP -c -o $@ $< > $@.log 2>&1 || \
  { cat $@.log; exit 1; }
@mv $(@D)/$(*F).keep/$(*F)*compute_80.ptx $(@:.o=.ptx) && rm -r $(@D)/$(*F).keep
endef
# The rule of written sources is the first, because make takes the first rule whose source it knows, and it also knows
# sources of the tree that only the dependencies of an older build name.
$(BUILD)/obj/kernels/%.cu.o: $(BUILD)/kernels/%.cu $(BUILD)/cuda_archs
	$(nvcc)
$(BUILD)/obj/kernels/%.cu.o: kernels/%.cu $(BUILD)/cuda_archs
	$(nvcc)
# attention_instance HALF TYPE: the rule that writes one source of ATTENTION_INSTANCES, if it changed.
define attention_instance
$(BUILD)/kernels/attention/cuda/attention_$(1)_$(2).cu: .make/program.mk
	@mkdir -p $$(@D)
	@printf '%s\n' '#include "kernels/attention/cuda/attention_$(patsubst backward_%,backward,$(1)).cuh"' '' \
	  'namespace choir::cuda {' '' \
	  $(if $(filter hopper_forward,$(1)),'template bool hopper_has_attention<$(2)>(const ops::AttentionProblem&);') \
	  'template void launch_attention_$(1)(const Stream&, const ops::AttentionProblem&, const AttentionArgs<$(2)>&);' \
	  '' '}  // namespace choir::cuda' > $$@.new
	@cmp -s $$@.new $$@ && rm $$@.new || mv $$@.new $$@
endef
$(foreach half,$(ATTENTION_HALVES),$(foreach type,bf16 f16,$(eval $(call attention_instance,$(half),$(type)))))
# Dependencies of builds before make wrote these sources name them in the tree.
$(ATTENTION_INSTANCES): ;
$(BUILD)/obj/src/%.o $(BUILD)/obj/kernels/%.o: CPPFLAGS += $(if $(call in_folders,cuda cudnn nccl,$@),$(CUDA_CPPFLAGS))

# Reading headers is most of a compiler's work here, so the common ones are precompiled three times:
# for the program, the kernels and the tests, whose flags differ.
$(BUILD)/obj/kernels/%.o $(BUILD)/prelude/kernels.hpp.gch: CXXFLAGS += $(KERNEL_FLAGS)
$(BUILD)/obj/test/%.o $(BUILD)/prelude/test.hpp.gch: OPTIMISE := $(if $(SANITIZE),-O0,-O1 $(if $(DEBUG),-g))
# Modules that read text of users and print text: their run time is spent on files and people, and
# they take two thirds of the time to build. Modules that compute a number of a step are not among
# them: its last bit depends on the flags.
PLAIN_ROOMS := app deck lab report train/loop
$(foreach room,$(PLAIN_ROOMS),$(BUILD)/obj/src/$(room)/%.o) $(BUILD)/prelude/plain.hpp.gch: \
  OPTIMISE := $(if $(SANITIZE),-O0,-O1 $(if $(DEBUG),-g))
$(BUILD)/prelude/src.hpp $(BUILD)/prelude/plain.hpp $(BUILD)/prelude/kernels.hpp: src/core/prelude.hpp
$(BUILD)/prelude/test.hpp: test/support/prelude.hpp
$(BUILD)/prelude/%.hpp:
	@mkdir -p $(@D)
	@echo '#include "$<"' > $@
# Another compiler or other flags cause a full rebuild; another path of the same compiler, or
# stricter warnings, do not.
FLAGS := $(filter-out -Werror -I$(BUILD) $(HEAP),$(MPICXX) $(CPPFLAGS) $(CXXFLAGS) $(KERNEL_FLAGS))
ifneq ($(and $(NEEDS_FEATURES),$(wildcard $(BUILD)/features.mk)),)
  $(shell $(call write_changed,$(BUILD)/flags,$(FLAGS)))
endif
$(BUILD)/prelude/%.hpp.gch: $(BUILD)/prelude/%.hpp $(BUILD)/flags
	@echo "  c++   $*'s prelude"
	@$(MPICXX) $(CPPFLAGS) $(CXXFLAGS) -MT $@ -MF $(BUILD)/prelude/$*.d -w -x c++-header -c -o $@ $<

# Sources of a module, and their precompiled headers.
define compile
$(BUILD)/obj/$(1)/%.o: $(BUILD)/groups/$(1)/%.cpp $(BUILD)/prelude/$(2).hpp.gch
	@mkdir -p $$(@D)
	@echo "  c++   $$(patsubst %/,%,$$(dir $(1)/$$*)): $$$$(sed -nE 's|.*/(.*)\.cpp"|\1|p' $$< | tr '\n' ' ')"
	@$(MPICXX) $$(CPPFLAGS) $$(CXXFLAGS) $(GROUP_WARNINGS) -include $(BUILD)/prelude/$(2).hpp -c -o $$@ $$<
$(BUILD)/obj/$(1)/%.o: $(1)/%.cpp $(BUILD)/prelude/$(2).hpp.gch
	@mkdir -p $$(@D)
	@echo "  c++   $$<"
	@$(MPICXX) $$(CPPFLAGS) $$(CXXFLAGS) $$(if $$(own_flags),$$(own_flags),-include $(BUILD)/prelude/$(2).hpp) -c -o $$@ $$<
endef
# The number of roundings of a sum of products must not depend on the shape of its tile, but it does
# if GCC tunes for processors on which it considers chains of fused operations slow; a hidden key
# must change nothing. A prelude that was compiled without the flag would cancel it.
$(BUILD)/obj/kernels/attention/simd/%.o: own_flags := $(FUSED_FLAGS)
$(foreach room,src kernels test,$(eval $(call compile,$(room),$(room))))
$(foreach room,$(PLAIN_ROOMS),$(eval $(call compile,src/$(room),plain)))
