# Programs of the tests: of one rank and of several, one with a family of models of its own, and choir with broken rules.

# One program for the tests of a single rank, one for those of several; each module has a folder.
# ONLY=core,device restricts both to these modules (and links just the same).
MODULES := $(if $(ONLY),$(shell echo $(ONLY) | tr ',' ' '),*)
UNIT_TESTS := $(sort $(wildcard $(MODULES:%=test/unit/%/*.cpp) $(MODULES:%=test/unit/%/*/*.cpp)))
MPI_TESTS  := $(sort $(wildcard $(MODULES:%=test/mpi/%/*.cpp)) $(wildcard test/mpi_cuda/*.cpp))
SUPPORT    := $(sort $(wildcard test/support/*.cpp))
TEST_LIBS  := $(GTEST_LIBS)

UNIT_OBJECTS := $(call objects,$(UNIT_TESTS))
MPI_OBJECTS  := $(call objects,$(MPI_TESTS))
$(BUILD)/test_unit: $(UNIT_OBJECTS) $(SUPPORT:%.cpp=$(BUILD)/obj/%.o) $(OWN_START_OBJECTS) $(OBJECTS)
	@$(call link,$(TEST_LIBS) $(LDLIBS))

$(BUILD)/test_mpi: $(MPI_OBJECTS) $(SUPPORT:%.cpp=$(BUILD)/obj/%.o) $(OBJECTS)
	@$(call link,$(TEST_LIBS) $(LDLIBS))

# Random decks, for test/run/drawn_decks.sh.
DRAWN := $(sort $(wildcard test/drawn_decks/*.cpp))
$(BUILD)/drawn_decks: $(DRAWN:%.cpp=$(BUILD)/obj/%.o) $(OBJECTS)
	@$(call link,$(LDLIBS))

# A program with a family of models of its own, which test/run/library.sh also builds from what is installed.
TOY := $(sort $(wildcard test/toy_family/*.cpp))
$(BUILD)/choir_toy: $(TOY:%.cpp=$(BUILD)/obj/%.o) $(OWN_START_OBJECTS) $(OBJECTS)
	@$(call link,$(LDLIBS))

# The program with broken rules of training (test/mutants/rules.txt).
$(BUILD)/broken_rules/written: test/mutants/rules.txt test/mutants/mutate.sh $(BROKEN)
	@test/mutants/mutate.sh $(BUILD)/broken_rules && touch $@
$(BROKEN:%=$(BUILD)/broken_rules/%): $(BUILD)/broken_rules/written ;
# Groups name their sources from the top, and changed sources are found before those of the tree.
BROKEN_OBJECTS := $(BROKEN_UNITS:%.cpp=$(BUILD)/broken_rules/%.o)
$(BROKEN_OBJECTS): CPPFLAGS := -I$(BUILD)/broken_rules $(CPPFLAGS)
define compile_broken
@mkdir -p $(@D)
@echo "  c++   $(if $(findstring /groups/,$<),$(shell sed -nE 's|.*/(.*)\.cpp"|\1|p' $<),$*.cpp) with broken rules"
@$(MPICXX) $(CPPFLAGS) $(CXXFLAGS) $(GROUP_WARNINGS) -include $(BUILD)/prelude/src.hpp -include test/mutants/mutant.hpp -c -o $@ $<
endef
$(BUILD)/broken_rules/%.o: $(BUILD)/groups/%.cpp $(BUILD)/broken_rules/written test/mutants/mutant.hpp $(BUILD)/prelude/src.hpp.gch
	$(compile_broken)
$(BUILD)/broken_rules/%.o: $(BUILD)/broken_rules/%.cpp test/mutants/mutant.hpp $(BUILD)/prelude/src.hpp.gch
	$(compile_broken)
$(BUILD)/choir_mutants: $(MAIN_OBJECTS) $(BROKEN_OBJECTS) \
    $(filter-out $(BROKEN_UNITS:%.cpp=$(BUILD)/obj/%.o),$(OBJECTS))
	@$(call link,$(LDLIBS))
