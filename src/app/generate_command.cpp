// choir generate CHECKPOINT --prompt TEXT ...
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cstdio>

#include "choir/comm/agreement.hpp"
#include "choir/core/text.hpp"
#include "choir/data/vocabulary/utf8_stream.hpp"
#include "choir/data/vocabulary/vocabulary.hpp"
#include "choir/models/gpt/foreign/logit_check.hpp"
#include "choir/models/gpt/generator.hpp"
#include "choir/models/gpt/gpt.hpp"
#include "src/app/generate_from_audio.hpp"
#include "src/app/session.hpp"

namespace choir {
namespace {

struct GenerateRequest {
  std::string checkpoint, prompt = "\n", precision, device = "auto";
  std::string ids;     ///< instead of a text
  std::string logits;  ///< the file that gets those of the prompt
  std::int64_t tokens = 200;
  TokenChoice choice{.temperature = 0.8};
  int tensor = 1;
  std::string audio;  ///< sound files, comma-separated: a model that hears answers
  bool json = false;
};

HearRequest heard(const GenerateRequest& r) {
  return {.checkpoint = r.checkpoint,
          .prompt = r.prompt,
          .precision = r.precision,
          .device = r.device,
          .clips = split(r.audio, ','),
          .tokens = r.tokens,
          .choice = r.choice,
          .tensor = r.tensor,
          .json = r.json};
}

/// Text, and it comes out as it is chosen.
void write_text(const LoadedModel& loaded, const GenerateRequest& request, bool writes) {
  if (loaded.vocabulary.empty())
    throw DataError(
        "the checkpoint has no vocabulary: it was trained on token files without vocab.json",
        "text can be generated only from models with a tokenizer; --ids takes token ids");
  const Vocabulary vocabulary = Vocabulary::from_json(loaded.vocabulary, loaded.checkpoint.path);
  auto prompt = vocabulary.text_start();
  const auto text = vocabulary.encode(request.prompt, "--prompt");
  prompt.insert(prompt.end(), text.begin(), text.end());
  if (prompt.empty()) throw DataError("the prompt is empty", "give at least one character");
  if (writes) fmt::print("{}", request.prompt);
  TokenChoice choice = request.choice;
  choice.stop = vocabulary.end_of_text().value_or(-1);
  Utf8Stream characters;
  const auto show = [](const std::string& whole) {
    std::fwrite(whole.data(), 1, whole.size(), stdout);
    std::fflush(stdout);
  };
  Generator(*loaded.instance).generate(prompt, request.tokens, choice, [&](std::int32_t token) {
    // A table of embeddings may have more rows than there are tokens.
    if (writes && vocabulary.has(token)) show(characters.push(vocabulary.piece(token)));
  });
  if (writes) show(characters.finish() + "\n");
}

/// Ids of tokens, on one line; or the logits of the prompt, into a file.
void write_ids(const LoadedModel& loaded, const GenerateRequest& request, bool writes) {
  const auto& config = loaded.instance->as<Gpt>().config();
  const std::vector<std::int32_t> prompt = parse_ids(request.ids, config, "--ids");
  if (!request.logits.empty()) {
    const Logits logits = logits_of(*loaded.instance, prompt);
    if (!writes) return;
    write_logits(request.logits, logits);
    fmt::print("logits={} shape={} dtype={}\n", request.logits, to_string(logits.shape),
               logits.in_f32 ? "float32" : "float64");
    return;
  }
  const auto tokens = Generator(*loaded.instance).generate(prompt, request.tokens, request.choice);
  if (writes) fmt::print("{}\n", fmt::join(tokens, ","));
}

int generate(MpiSession& session, const GenerateRequest& request) {
  Workplace place;
  place.mesh = inference_mesh(session, request.tensor);
  Communicator& world = place.mesh->world();
  choose_threads(place.mesh->node());
  const LoadedModel loaded =
      load_generator(request.checkpoint, request.precision, place, {"device=" + request.device});
  // Ranks other than those of the first layers helped to verify the checkpoint; text is written by
  // one. Where parameters are sharded, all walk through the model with it and fail alike.
  const bool all_walk = loaded.instance->storage().sharding().values_sharded();
  together(world, [&] {
    if (place.mesh->coordinates()[Axis::data] != 0 && !all_walk) return;
    const auto write = request.ids.empty() ? write_text : write_ids;
    write(loaded, request, session.rank() == 0);
  });
  return 0;
}

}  // namespace

int generate_command(const Arguments& arguments) {
  CommandLine app(
      "Continues a prompt. CHECKPOINT is a checkpoint, or a run directory (its newest).",
      "choir generate");
  GenerateRequest request;
  app.add_option("checkpoint", request.checkpoint, "checkpoint or run directory").required();
  const auto prompt = app.add_option("--prompt", request.prompt, "the text to continue");
  const auto ids =
      app.add_option("--ids", request.ids,
                     "token ids to continue, 3,17,5, of models without a tokenizer too")
          .excludes(prompt);
  app.add_option("--logits", request.logits,
                 "write the logits [ids, vocabulary] of the prompt in NumPy's format instead")
      .needs(ids);
  const auto audio = app.add_option("--audio", request.audio,
                                    "sound files, a.wav,b.flac: models that hear answer; --prompt "
                                    "has <|audio|> where each is heard, or they come first")
                         .excludes(ids);
  app.add_flag("--json", request.json, "with --audio: prompt, audio and answer as a line of JSON")
      .needs(audio);
  app.add_option("--tokens", request.tokens, "how many tokens to add").within(1, 1 << 30);
  const auto temperature =
      app.add_option("--temperature", request.choice.temperature,
                     "0: always the most likely token, as answers to --audio are without it")
          .within(0.0, 100.0);
  app.add_option("--top-k", request.choice.top_k, "sample from the top k tokens; 0: from all")
      .within(0, 1 << 30);
  app.add_option("--top-p", request.choice.top_p, "nucleus sampling: total probability p")
      .within(0.0, 1.0);
  app.add_option("--seed", request.choice.seed, "random seed");
  app.add_option("--device", request.device, "auto, cpu or cuda").shows_default();
  app.add_option("--precision", request.precision,
                 "fp32, bf16-mixed, fp16-mixed; default: as trained");
  add_tensor_option(app, request.tensor);
  if (const auto code = parse(app, arguments)) return *code;
  if (!prompt.given() && audio.given()) request.prompt.clear();
  if (!temperature.given() && audio.given()) request.choice.temperature = 0;
  return with_mpi([&](MpiSession& session) {
    return audio.given() ? generate_from_audio(session, heard(request))
                         : generate(session, request);
  });
}

}  // namespace choir
