# Programs of libFuzzer, one per file of test/fuzz: compiled with Clang, and instrumented in code
# that the input reaches; the rest are the unchanged objects of the program. The target is a
# processor of 2015, as in the sanitized build. FUZZ=deck,archive: only these.
CLANGXX ?= clang++
FUZZ_TARGETS := $(if $(FUZZ),$(shell echo $(FUZZ) | tr ',' ' '),$(basename $(notdir $(wildcard test/fuzz/*.cpp))))
FUZZED := $(addprefix src/core/,dtype error file file_kind json_array_reader json_document json_value hash key_table key_table_print protobuf tensor text yaml_reader) \
  $(addprefix src/data/,speech/label_file sampling/mix tasks/eval_task tasks/task_scores) src/run/evaluation_record \
  $(filter-out %/prepare_audio,$(basename $(wildcard src/data/audio/*.cpp))) \
  $(basename $(wildcard src/data/sources/*.cpp)) $(basename $(wildcard src/data/vocabulary/*.cpp)) $(addprefix src/data/text/,token_file token_stream) \
  $(addprefix src/store/,directory encoding quantised_blocks weight_file manifest open finite slab_io state_file tensor_file) \
  $(basename $(wildcard $(addsuffix /*.cpp,$(addprefix src/store/,safetensors gguf torch llmc weights)))) \
  $(addprefix src/models/,families gpt/family fastconformer/family fastconformer/speech_settings) \
  $(basename $(wildcard src/models/fastconformer/foreign/*.cpp)) src/models/gpt/foreign/peft \
  $(basename $(wildcard src/deck/*.cpp))
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
# The objects of the program contain the instrumented sources once more, in groups with others: the first definition is linked.
$(FUZZ_TARGETS:%=$(BUILD)/fuzz/%): $(BUILD)/fuzz/%: $(BUILD)/fuzz/obj/test/fuzz/%.o $(BUILD)/fuzz/libfuzzed.a $(BUILD)/fuzz/libplain.a
	@echo "  link  $@"
	@$(CLANGXX) $(FUZZ_FLAGS) -fsanitize=fuzzer -Wl,-z,muldefs -o $@ $< -Wl,--whole-archive $(BUILD)/fuzz/libfuzzed.a \
	  -Wl,--no-whole-archive $(BUILD)/fuzz/libplain.a $(LDFLAGS) $(LDLIBS) -lgomp
.PHONY: fuzz
fuzz: $(FUZZ_TARGETS:%=$(BUILD)/fuzz/%)
