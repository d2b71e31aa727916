#include "src/models/gpt/chat_deck.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "choir/core/error.hpp"
#include "choir/deck/deck.hpp"
#include "choir/models/family.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/core/hints.hpp"
#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/models/gpt/family.hpp"
#include "src/run/imported_run.hpp"
#include "src/run/stored_model.hpp"
#include "src/store/directory.hpp"
#include "src/store/open.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kEpochs = 3, kFewestSteps = 10;
constexpr std::int64_t kTokensOfStep = 8192, kTokensOfMicroBatch = 2048;

/// The largest power of two that is at most `value`, and at least 1.
std::int64_t power_below(std::int64_t value) {
  std::int64_t power = 1;
  while (2 * power <= value) power *= 2;
  return power;
}

std::int64_t multiple_above(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Learning rates of adapters are ten times those of whole models and more; small models take more.
double adapter_learning_rate(std::int64_t width) {
  constexpr std::int64_t kSmall = 2048;
  return width < kSmall ? 5e-4 : 2e-4;
}

std::string json_text(const std::string& text) {
  return dumped(nlohmann::json(text));
}

}  // namespace

std::int64_t chat_row_length(const ChatSize& size, const GptConfig& model) {
  if (model.position == Position::learned) return model.block_size;
  constexpr std::int64_t kTogether = 8, kUnit = 64, kSmallUnit = 16;
  const std::int64_t mean = size.tokens / std::max<std::int64_t>(size.conversations, 1);
  // The last token of a conversation is no input.
  std::int64_t length = std::max(size.longest - 1, kTogether * mean);
  // A window must be shorter than a row.
  if (model.window > 0) length = std::max(length, model.window + 1);
  length = multiple_above(length, length < kUnit ? kSmallUnit : kUnit);
  return std::min(length, model.block_size);
}

std::string tokenizer_of_run(const std::string& run) {
  const fs::path folder = fs::path(run) / kTokenizerFolder;
  if (!fs::exists(run))
    throw DeckError(fmt::format("--for {}: there is no such run", run),
                    advice_on_path(run, "`choir runs` lists the runs below runs/"));
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json"})
    if (fs::exists(folder / name)) return (folder / name).string();
  return {};
}

CheckpointTokens tokens_of_checkpoint(const std::string& run, Communicator& world) {
  const Checkpoint checkpoint = open_checkpoint(run, world);
  CheckpointTokens found;
  together(world, [&] {
    const TrainMeta meta = TrainMeta::parse(checkpoint.json, checkpoint.path);
    found = {meta.vocabulary, meta.vocab_size};
  });
  return found;
}

namespace {

/// Reads the deck of a run that must have this type.
Deck deck_of_run(const ChatDeckRequest& request, const std::string& run, const char* option,
                 const char* type) {
  const fs::path path = fs::path(run) / "deck.json";
  if (!fs::exists(run))
    throw DeckError(fmt::format("{} {}: there is no such run", option, run),
                    advice_on_path(run, "`choir runs` lists the runs below runs/"));
  if (!fs::exists(path))
    throw DeckError(fmt::format("{} {}: this is no run, it has no deck.json", option, run),
                    "name a run directory, for example one that `choir import` made");
  Deck deck = read_deck(*request.families, path.string(), {});
  if (deck.model.type != type)
    throw DeckError(fmt::format("{} {}: model.type is \"{}\" there, but it must be \"{}\"", option,
                                run, deck.model.type, type),
                    "inputs/fine_tune.md shows which runs are needed");
  return deck;
}

/// The keys of the model of a run that are not at their defaults and that a part of a larger model
/// has, too, as members of JSON: `part` is "model.lm.", for example.
std::string members_of_part(const ChatDeckRequest& request, const std::string& run,
                            const std::string& part) {
  const std::string path = (fs::path(run) / "deck.json").string();
  const auto json = parsed_ordered_json(read_text_file(path));
  std::string text;
  for (const auto& [key, value] : json.at("model").items()) {
    const auto source = json.at("sources").find("model." + key);
    const bool chosen =
        source != json.at("sources").end() && *source != "default" && *source != "derived";
    if (key == "type" || value.is_object() || !chosen) continue;
    if (request.families->keys().find(part + key) == nullptr) continue;
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", json_text(key), dumped(value));
  }
  return text;
}

/// The frames of the encoder that become a row of the language model.
constexpr std::int64_t kStack = 4;

/// Refuses conversations with more tokens than the model: a vocabulary of characters has no token
/// that ends a turn, and gets one here.
void require_room(const ChatDeckRequest& request) {
  const std::int64_t needed = request.size.vocab_size;
  if (needed <= request.tokens) return;
  throw DeckError(
      fmt::format("the conversations have {} tokens with those that end turns, but the model of "
                  "'{}' has {}",
                  needed, request.run, request.tokens),
      fmt::format("train that run with model.vocab_size={}, which leaves room for them, or with a "
                  "vocabulary that has such a token (`choir prepare text --tokenizer bpe`)",
                  needed));
}

ChatDeck speech_chat_deck(const ChatDeckRequest& request, const std::string& held) {
  const Deck lm = deck_of_run(request, request.run, "--for", "gpt");
  require_room(request);
  const Deck encoder = deck_of_run(request, request.encoder, "--encoder", "fastconformer");
  // A row stands for 160 ms where the encoder has a frame for 40 ms.
  constexpr double kRowsOfSecond = 6.25, kConversationsOfBatch = 8;
  const double rows =
      static_cast<double>(request.size.tokens) + kRowsOfSecond * request.size.seconds;
  const double mean =
      rows / static_cast<double>(std::max<std::int64_t>(request.size.conversations, 1));
  const std::int64_t batch =
      multiple_above(std::max<std::int64_t>(std::llround(kConversationsOfBatch * mean), 512), 64);
  const std::int64_t steps = std::max(
      kFewestSteps,
      static_cast<std::int64_t>(std::ceil(kEpochs * rows / static_cast<double>(2 * batch))));
  const fs::path here = fs::absolute(request.folder).lexically_normal();
  const std::string name = here.filename().string();
  ChatDeck made;
  made.run_dir = "runs/" + name;
  made.summary = fmt::format("data.batch_tokens {}, two batches in a step, {} steps", batch, steps);
  made.text = fmt::format(
      R"({{
  // A language model learns to hear: {} of {} tokens in all and {} of sound. Both runs stay as they
  // are; what learns is an adapter and a projector between them, and LoRA in the language model.
  // Written by `choir prepare chat`: change what you like.
  "run": {{"name": {}, "dir": {}}},
  "model": {{
    "type": "salm",
    "encoder": {{{}}},
    "adapter": {{"layers": 2, "stack": {}}},
    "lm": {{{}, "lora": {{"rank": 16, "alpha": 32}}}}
  }},
  // A micro-batch has about {}; {} epochs.
  "data": {{"train": [{}]{}, "batch_tokens": {}, "buckets": 4}},
  "train": {{"micro_batches": 2, "max_steps": {},
            "freeze": ["encoder.*"], "unfreeze": ["adapter.*", "projector.*"]}},
  // The learning rate of the language model is half of that of the rest.
  "optimizer": {{"learning_rate": 1e-3, "warmup_steps": {}, "scale": {{"lm.*": 0.5}}}},
  "eval": {{"interval": {}, "answers": 24, "answer_tokens": 24}},
  "log": {{"interval": {}}},
  "checkpoint": {{"init_from": {{"encoder.*": {}, "lm.*": {}}}, "interval": {}}}
}}
)",
      counted(request.size.conversations, "conversation"), format_count(request.size.tokens),
      format_duration(request.size.seconds), json_text(name), json_text(made.run_dir),
      members_of_part(request, request.encoder, "model.encoder."), kStack,
      members_of_part(request, request.run, "model.lm."),
      counted(std::max<std::int64_t>(1, std::llround(static_cast<double>(batch) / mean)),
              "conversation"),
      kEpochs, json_text(request.folder), held, batch, steps, std::max<std::int64_t>(1, steps / 20),
      held.empty() ? 0
                   : std::clamp<std::int64_t>(steps / 5, std::min<std::int64_t>(steps, 10), steps),
      std::clamp<std::int64_t>(steps / 20, 1, 10), json_text(request.encoder),
      json_text(request.run), std::max<std::int64_t>(1, steps / 4));
  return made;
}

}  // namespace

void require_chat_runs(const ChatDeckRequest& request) {
  deck_of_run(request, request.run, "--for", "gpt");
  if (!request.encoder.empty()) deck_of_run(request, request.encoder, "--encoder", "fastconformer");
}

ChatDeck chat_deck(const ChatDeckRequest& request) {
  const bool sound = request.size.seconds > 0;
  if (sound && request.encoder.empty())
    throw DeckError("the conversations have recordings, but no run gives an encoder for them",
                    "name the run of a recogniser: --encoder runs/asr");
  if (!sound && !request.encoder.empty())
    throw DeckError("--encoder: the conversations have no recordings",
                    "leave it out, or give conversations with recordings");
  const std::string held =
      request.held.empty() ? "" : fmt::format(", \"val\": [{}]", json_text(request.held));
  if (sound) return speech_chat_deck(request, held);
  const fs::path base = fs::path(request.run) / "deck.json";
  const Deck deck = deck_of_run(request, request.run, "--for", "gpt");
  const GptConfig& model = gpt_of(deck);
  require_room(request);
  if (request.size.longest - 1 > model.block_size)
    throw DeckError(fmt::format("the longest conversation has {} tokens, but '{}' has {} positions",
                                request.size.longest, request.run, model.block_size),
                    fmt::format("leave longer ones out: --max-tokens {}", model.block_size + 1));

  const std::int64_t row = chat_row_length(request.size, model);
  // Rows are filled to about 95 %.
  const double rows =
      std::ceil(static_cast<double>(request.size.tokens) / 0.95 / static_cast<double>(row));
  // A step has at most a quarter of the rows.
  const std::int64_t global = std::clamp<std::int64_t>(
      power_below(std::min(kTokensOfStep / row, static_cast<std::int64_t>(rows) / 4)), 2, 64);
  const std::int64_t micro = std::clamp<std::int64_t>(power_below(kTokensOfMicroBatch / row), 1,
                                                      std::min<std::int64_t>(8, global / 2));
  const std::int64_t steps =
      std::max(kFewestSteps,
               static_cast<std::int64_t>(std::ceil(rows * kEpochs / static_cast<double>(global))));
  const double rate = adapter_learning_rate(model.n_embd);
  const std::int64_t warmup = std::max<std::int64_t>(1, steps / 20);

  const fs::path here = fs::absolute(request.folder).lexically_normal();
  const std::string include = fs::absolute(base).lexically_normal().lexically_relative(here);
  const std::string name = here.filename().string();
  ChatDeck made;
  made.run_dir = "runs/" + name;
  made.summary = fmt::format(
      "rows of {} tokens (data.pack), {} of them in a step, {} steps, "
      "optimizer.learning_rate {:g}",
      row, global, steps, rate);
  made.text = fmt::format(
      R"({{
  // LoRA on {} of {} tokens in all, the longest with {}. Written by `choir prepare chat`: change
  // what you like. The model is that of the included deck.
  "include": {},
  "run": {{"name": {}, "dir": {}}},
  "model": {{
    // A row is a sequence of the model. It holds about {}, and at least the longest one;
    // the rows of the base model have {} tokens.
    "block_size": {},
    "lora": {{"rank": 16, "alpha": 32}}
  }},
  "data": {{"train": [{}]{}, "pack": true}},
  // {} epochs of about {:.0f} rows.
  "train": {{"micro_batch_size": {}, "grad_accum": 0, "global_batch_size": {}, "max_steps": {}}},
  "optimizer": {{"learning_rate": {:g}, "warmup_steps": {}}},
  "eval": {{"interval": {}}},
  "log": {{"interval": {}}},
  "checkpoint": {{"init_from": {}, "interval": {}}}
}}
)",
      counted(request.size.conversations, "conversation"), format_count(request.size.tokens),
      request.size.longest, json_text(include), json_text(name), json_text(made.run_dir),
      counted(std::max<std::int64_t>(1, row * request.size.conversations / request.size.tokens),
              "conversation"),
      model.block_size, row, json_text(request.folder), held, kEpochs, rows, micro, global, steps,
      rate, warmup, request.held.empty() ? 0 : std::max<std::int64_t>(1, steps / 10),
      std::clamp<std::int64_t>(steps / 20, 1, 10), json_text(request.run),
      std::max<std::int64_t>(1, steps / 4));
  return made;
}

}  // namespace choir
