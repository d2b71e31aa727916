# Programs of libFuzzer, one a file of test/fuzz: with Clang, and instrumented where what the input
# reaches is written; the rest are the objects of the program itself, as they are. Of a processor of
# 2015, as the sanitized build. FUZZ=deck,archive: only these.
CLANGXX ?= clang++
FUZZ_TARGETS := $(if $(FUZZ),$(shell echo $(FUZZ) | tr ',' ' '),$(basename $(notdir $(wildcard test/fuzz/*.cpp))))
FUZZED := $(addprefix src/core/,capped_text crc32c dtype error failure file_kind json json_text json_value key_table key_table_print key_value tensor text) \
  $(addprefix src/data/,posix_file speech/label_file speech/speech_mix) \
  $(filter-out %/audio_report %/prepare_audio,$(basename $(wildcard src/data/audio/*.cpp))) \
  $(basename $(wildcard src/data/vocabulary/*.cpp)) \
  $(addprefix src/data/tokens/,token_file token_stream) \
  $(addprefix src/store/,directory encoding file_window manifest open finite slab_io state_file state_meta tensor_reader) \
  $(basename $(wildcard $(addsuffix /*.cpp,$(addprefix src/store/,safetensors gguf torch llmc weights)))) \
  $(addprefix src/models/,families gpt/gpt_keys fastconformer/fastconformer_keys \
    fastconformer/speech_settings) \
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
$(FUZZ_TARGETS:%=$(BUILD)/fuzz/%): $(BUILD)/fuzz/%: $(BUILD)/fuzz/obj/test/fuzz/%.o $(BUILD)/fuzz/libfuzzed.a $(BUILD)/fuzz/libplain.a
	@echo "  link  $@"
	@$(CLANGXX) $(FUZZ_FLAGS) -fsanitize=fuzzer -o $@ $^ $(LDFLAGS) $(LDLIBS) -lgomp
.PHONY: fuzz
fuzz: $(FUZZ_TARGETS:%=$(BUILD)/fuzz/%)
