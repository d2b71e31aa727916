// choir generate CHECKPOINT --prompt TEXT ...: text from prompts, conversations and sound files.

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <span>
#include <string>

#include "src/app/command_line.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/data/chat/chat_template.hpp"
#include "src/data/chat/conversation.hpp"
#include "src/data/vocabulary/utf8.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/models/gpt/foreign/logit_check.hpp"
#include "src/models/gpt/generator.hpp"
#include "src/models/gpt/gpt.hpp"
#include "src/models/salm/generator.hpp"
#include "src/run/loaded_model.hpp"
#include "src/run/run_setup.hpp"
#include "src/run/token_choice.hpp"

namespace choir {

struct HearRequest {
  const FamilyTable& families;
  std::string checkpoint, prompt, precision, device = "auto";
  Arguments clips;  ///< sound files, in the order of their tags
  std::int64_t tokens = 200;
  TokenChoice choice;
  int tensor = 1;
  bool json = false, ema = false;
};

/// Throws DeckError for a checkpoint without audio input, and if the clips do not match the tags
/// <|audio|> of the prompt (a prompt without tags gets them in front); DataError for files that are
/// not audio. Collective.
int generate_from_audio(MpiSession& session, const HearRequest& request);

namespace {

/// Returns the prompt as a user's turn with a tag for each clip.
std::string tagged_prompt(const HearRequest& request) {
  const std::string_view tag = kAudioTag;
  std::int64_t tags = 0;
  for (auto at = request.prompt.find(tag); at != std::string::npos;
       at = request.prompt.find(tag, at + tag.size()))
    ++tags;
  const std::int64_t clips = std::ssize(request.clips);
  if (tags == clips) return request.prompt;
  if (tags > 0)
    throw DeckError(
        fmt::format("--prompt has {}, --audio {}", counted(tags, "tag"), counted(clips, "file")),
        fmt::format("write {} once for each clip, or not at all", tag));
  std::string text;
  for (std::int64_t i = 0; i < clips; ++i) text += fmt::format("{} ", tag);
  return text + request.prompt;
}

}  // namespace

int generate_from_audio(MpiSession& session, const HearRequest& request) {
  Workplace place;
  place.mesh = inference_mesh(session, request.tensor);
  Communicator& world = place.mesh->world();
  choose_threads(place.mesh->node());
  LoadedModel loaded = open_model(request.families, request.checkpoint, request.precision,
                                  *place.mesh, with_ema({"device=" + request.device}, request.ema));
  HeardPrompt prompt;
  together(world, [&] {
    require_ability(loaded, loaded.deck.family().hears(), "has no audio input", "salm");
    prompt = read_prompt(model_of(loaded.deck), loaded.vocabulary, loaded.checkpoint.path,
                         tagged_prompt(request), request.clips);
  });
  load_instance(loaded, {prompt.shape()}, place);
  const bool writes = session.rank() == 0, streams = writes && !request.json;
  const bool all_walk = loaded.instance->storage().sharding().values_sharded();
  Utf8Stream characters;
  std::string answer;
  const auto work = [&] {
    if (place.mesh->coordinates()[Axis::data] != 0 && !all_walk) return;
    answer = prompt.answer(*loaded.instance, request.tokens, request.choice,
                           [&](const std::string& piece) {
                             if (streams) print_generated(characters.push(piece));
                           });
  };
  if (all_walk)
    work();  // the ranks run in lockstep and agree on errors themselves
  else
    together(world, work);
  if (streams) print_generated(characters.finish() + "\n");
  if (writes && request.json) {
    nlohmann::ordered_json json;
    json["prompt"] = request.prompt;
    json["audio"] = request.clips;
    json["answer"] = answer;
    print_safely("{}\n", dumped_safely(json));
  }
  return 0;
}

namespace {

struct GenerateRequest {
  const FamilyTable& families;
  std::string checkpoint, prompt = "\n", precision, device = "auto";
  std::string ids;      ///< token ids instead of a text
  std::string prompts;  ///< a file of prompts, or "-", instead of one prompt
  std::string chat_template, system;
  bool chat = false, json = false, timings = false;
  std::int64_t batch = 8;  ///< texts that are generated together
  bool talks = false;      ///< the standard input has the turns of a conversation
  std::int64_t samples = 1;
  std::string logits;  ///< file for the logits of the prompt
  std::int64_t tokens = 200;
  TokenChoice choice{.temperature = 0.8};
  int tensor = 1;
  std::string audio;  ///< sound files, comma-separated, for a model with audio input
  bool ema = false;
};

HearRequest heard(const GenerateRequest& r) {
  return {.families = r.families,
          .checkpoint = r.checkpoint,
          .prompt = r.prompt,
          .precision = r.precision,
          .device = r.device,
          .clips = split(r.audio, ','),
          .tokens = r.tokens,
          .choice = r.choice,
          .tensor = r.tensor,
          .json = r.json,
          .ema = r.ema};
}

void show_times(const Generator& generator, const GenerateRequest& request, bool writes) {
  if (request.timings && writes) print_safely(stderr, "{}\n", generator.times().to_string());
}

/// A prompt in tokens and the model's answer.
struct Exchange {
  const Prompt* prompt = nullptr;
  std::int64_t number = 1, sample = 0;
  std::vector<std::int32_t> ids;
  std::string text;
  std::vector<std::int32_t> answer;  ///< the ids of the prompt and those that follow
};

/// Writes the model's answers to texts and conversations. All ranks that run the model execute the
/// same calls, and one of them writes. An answer depends only on its prompt, its sample number and
/// the seed, not on the other prompts.
class TextWriter {
 public:
  TextWriter(const LoadedModel& loaded, const GenerateRequest& request, bool writes)
      : loaded_(loaded), request_(request), writes_(writes), vocabulary_(vocabulary_of(loaded)) {
    choice_ = request.choice;
    if (const auto end = vocabulary_.end_of_text()) choice_.stop.push_back(*end);
    if (!request.chat) return;
    chat_ = chat_tokenizer_of(loaded.vocabulary, request.chat_template,
                              model_of(loaded.deck).vocab_size(), loaded.checkpoint.path);
    choice_.stop.push_back(end_of_turn(chat_.chat, *chat_.tokenizer));
  }

  /// Answers every prompt with all its samples. Nothing is written if one of them cannot be read.
  void write_all(const std::vector<Prompt>& prompts) {
    std::vector<Exchange> exchanges;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const std::vector<std::int32_t> ids = fitting(prompts[i]);
      for (std::int64_t sample = 0; sample < request_.samples; ++sample)
        exchanges.push_back({.prompt = &prompts[i],
                             .number = static_cast<std::int64_t>(i) + 1,
                             .sample = sample,
                             .ids = ids,
                             .text = "",
                             .answer = {}});
    }
    several_ = exchanges.size() > 1;
    const auto together = static_cast<std::size_t>(request_.batch);
    const std::span all(exchanges);
    for (std::size_t at = 0; at < all.size(); at += together)
      answer(all.subspan(at, std::min(together, all.size() - at)));
  }

  /// Adds one turn of the user and answers it.
  void converse(const std::string& line) {
    if (said_.turns.empty() && !request_.system.empty())
      said_.turns.push_back({.role = "system", .text = request_.system});
    said_.turns.push_back({.role = "user", .text = line});
    said_.place = "standard input";
    Exchange turn{
        .prompt = &said_, .number = turn_++, .ids = encode(said_), .text = "", .answer = {}};
    answer({&turn, 1});
    said_.turns.push_back({.role = "assistant", .text = turn.text});
  }

 private:
  static Vocabulary vocabulary_of(const LoadedModel& loaded) {
    if (loaded.vocabulary.empty())
      throw DataError(
          "the checkpoint has no vocabulary: it was trained on token files without vocab.json",
          "a model without a tokenizer cannot generate text; use --ids with token ids");
    return Vocabulary::from_json(loaded.vocabulary, loaded.checkpoint.path);
  }

  std::vector<std::int32_t> encode(const Prompt& prompt) {
    if (request_.chat) {
      Conversation asked{.place = prompt.place, .id = "", .turns = prompt.turns};
      if (asked.turns.empty()) asked.turns.push_back({.role = "user", .text = prompt.text});
      return encode_conversation(asked, {.chat = chat_.chat, .system = request_.system},
                                 *chat_.tokenizer)
          .ids;
    }
    if (!prompt.turns.empty())
      throw DataError(prompt.place + ": this is a conversation", "use --chat for conversations");
    std::vector<std::int32_t> ids = vocabulary_.text_start();
    const auto text = vocabulary_.encode(prompt.text, prompt.place);
    ids.insert(ids.end(), text.begin(), text.end());
    if (ids.empty())
      throw DataError(prompt.place + ": the prompt is empty", "give at least one character");
    return ids;
  }

  /// Returns the ids of a prompt; throws DataError if the model cannot take them in at once.
  std::vector<std::int32_t> fitting(const Prompt& prompt) {
    std::vector<std::int32_t> ids = encode(prompt);
    const std::int64_t block = loaded_.instance->as<Gpt>().config().block_size;
    if (std::ssize(ids) > block)
      throw DataError(fmt::format("{}: a prompt of {} tokens, but the model has {} positions",
                                  prompt.place, ids.size(), block),
                      "shorten the prompt");
    return ids;
  }

  /// Answers all of them in one batch. The first text is shown as its characters complete; the
  /// others, and JSON, when all are finished.
  void answer(std::span<Exchange> exchanges) {
    std::vector<Question> questions;
    for (const Exchange& exchange : exchanges) {
      questions.push_back({.prompt = exchange.ids, .choice = choice_});
      questions.back().choice.seed += static_cast<std::uint64_t>(exchange.sample);
    }
    std::vector<Utf8Stream> characters(exchanges.size());
    const auto add = [&](std::size_t i, const std::string& whole) {
      exchanges[i].text += whole;
      if (i == 0 && !request_.json) show(whole);
    };
    if (!request_.json) show(heading(exchanges[0]));
    Generator generator(*loaded_.instance);
    auto answers = generator.generate_together(
        questions, request_.tokens, [&](std::size_t i, std::int32_t token) {
          // A table of embeddings may have more rows than the vocabulary has tokens.
          if (vocabulary_.has(token)) add(i, characters[i].push(vocabulary_.piece(token)));
        });
    for (std::size_t i = 0; i < exchanges.size(); ++i) {
      add(i, characters[i].finish());
      exchanges[i].answer = std::move(answers[i]);
      if (request_.json)
        show(json_line(exchanges[i]));
      else
        show((i == 0 ? "" : heading(exchanges[i]) + exchanges[i].text) + "\n");
    }
    show_times(generator, request_, writes_);
  }

  /// Text printed before an answer.
  std::string heading(const Exchange& exchange) const {
    std::string heading;
    if (several_)
      heading = fmt::format("--- prompt {}, sample {} ---\n", exchange.number, exchange.sample + 1);
    return request_.chat ? heading : heading + exchange.prompt->text;
  }

  std::string json_line(const Exchange& exchange) const {
    const std::vector<std::int32_t>& ids = exchange.answer;
    nlohmann::ordered_json line;
    line["prompt"] = exchange.number;
    if (!exchange.prompt->id.empty()) line["id"] = exchange.prompt->id;
    line["sample"] = exchange.sample + 1;
    line["text"] = exchange.text;
    const auto begin = ids.begin() + std::ssize(exchange.ids);
    const bool stopped = std::count(choice_.stop.begin(), choice_.stop.end(), ids.back()) > 0;
    line["ids"] = std::vector<std::int32_t>(begin, ids.end() - (stopped ? 1 : 0));
    line["prompt_tokens"] = exchange.ids.size();
    line["finish"] = stopped ? "stop" : "length";
    return dumped(line) + "\n";
  }

  void show(const std::string& text) const {
    if (writes_) print_generated(text);
  }

  const LoadedModel& loaded_;
  const GenerateRequest& request_;
  bool writes_;
  Vocabulary vocabulary_;
  TokenChoice choice_;
  OpenedTokenizer chat_;
  bool several_ = false;  ///< there are several answers, each with a heading
  Prompt said_;
  std::int64_t turn_ = 1;
};

/// Generates from token ids and prints ids on one line, or writes the logits of the prompt to a
/// file.
void write_ids(const LoadedModel& loaded, const GenerateRequest& request, bool writes) {
  const auto& config = loaded.instance->as<Gpt>().config();
  const std::vector<std::int32_t> prompt = parse_ids(request.ids, config, "--ids");
  if (!request.logits.empty()) {
    const Logits logits = logits_of(*loaded.instance, prompt);
    if (!writes) return;
    write_logits(request.logits, logits);
    print_safely("logits={} shape={} dtype={}\n", request.logits, to_string(logits.shape),
                 logits.in_f32 ? "float32" : "float64");
    return;
  }
  Generator generator(*loaded.instance);
  const auto tokens = generator.generate(prompt, request.tokens, request.choice);
  if (writes) print_safely("{}\n", fmt::join(tokens, ","));
  show_times(generator, request, writes);
}

/// Reads the prompts of --prompt or --prompts. Collective.
std::vector<Prompt> prompts_of(const GenerateRequest& request, Communicator& world) {
  if (request.prompts.empty())
    return {{.place = "--prompt", .id = "", .text = request.prompt, .turns = {}}};
  constexpr std::size_t kMostMib = 256;
  const bool piped = request.prompts == "-";
  const std::string source = piped ? "the standard input" : request.prompts;
  std::string text;
  together(world, [&] {
    if (world.rank() != 0) return;
    CappedText read = piped ? read_capped(std::cin, kMostMib)
                            : read_capped_file(request.prompts, kMostMib, Pipes::read);
    if (!read.fault.empty())
      throw DataError(fmt::format("--prompts: {} {}", source, read.fault),
                      "expected a file with one prompt per line, or - for the standard input");
    text = std::move(read.text);
  });
  broadcast_text(world, text);
  std::vector<Prompt> prompts;
  together(world, [&] { prompts = read_prompts(text, source); });
  return prompts;
}

/// Treats the lines of the standard input as turns of a user until it ends. Collective.
void talk(const LoadedModel& loaded, const GenerateRequest& request, Communicator& world,
          bool writes) {
  std::optional<TextWriter> writer;
  together(world, [&] { writer.emplace(loaded, request, writes); });
  for (;;) {
    std::string line;  // with a mark in front; empty at the end of the input
    if (world.rank() == 0) {
      if (isatty(STDIN_FILENO) != 0) print_safely(stderr, "> ");
      if (std::getline(std::cin, line)) line.insert(line.begin(), '>');
    }
    broadcast_text(world, line);
    if (line.empty()) return;
    if (trim(line.substr(1)).empty()) continue;
    together(world, [&] { writer->converse(line.substr(1)); });
  }
}

int generate(MpiSession& session, const GenerateRequest& request) {
  Workplace place;
  place.mesh = inference_mesh(session, request.tensor);
  Communicator& world = place.mesh->world();
  choose_threads(place.mesh->node());
  const std::vector<Prompt> prompts = prompts_of(request, world);
  const std::int64_t answers = request.talks ? 1 : std::ssize(prompts) * request.samples;
  const LoadedModel loaded = load_generator(
      request.families, request.checkpoint, request.precision, place,
      with_ema({"device=" + request.device}, request.ema), std::min(request.batch, answers));
  const bool writes = session.rank() == 0;
  if (request.talks) {
    talk(loaded, request, world, writes);
    return 0;
  }
  // One data-parallel rank generates; the others only helped to verify the checkpoint. If the
  // parameters are sharded, all ranks run the model with it and fail alike.
  const bool all_walk = loaded.instance->storage().sharding().values_sharded();
  together(world, [&] {
    if (place.mesh->coordinates()[Axis::data] != 0 && !all_walk) return;
    if (request.ids.empty())
      TextWriter(loaded, request, writes).write_all(prompts);
    else
      write_ids(loaded, request, writes);
  });
  return 0;
}

}  // namespace

int generate_command(const Invocation& call) {
  CommandLine app(
      "Continues a prompt. CHECKPOINT is a checkpoint, or a run directory (its newest). Files and "
      "pipes receive the bytes of the text; a terminal shows control characters as escapes.",
      "choir generate");
  GenerateRequest request{.families = call.families};
  app.add_option("checkpoint", request.checkpoint, "checkpoint or run directory").required();
  const auto prompt = app.add_option("--prompt", request.prompt, "text to continue");
  const auto ids =
      app.add_option("--ids", request.ids,
                     "token ids to continue (3,17,5), also for models without a tokenizer")
          .checked([](const std::string& text) -> std::string {
            return text.empty() ? "expected at least one id" : "";
          })
          .excludes(prompt);
  const auto prompts = app.add_option("--prompts", request.prompts,
                                      "file of prompts, one per line, or JSON lines with prompt or "
                                      "messages; - is the standard input")
                           .excludes(prompt)
                           .excludes(ids);
  const auto samples =
      app.add_option(
             "--samples", request.samples,
             "continuations of each prompt; the first uses --seed, each further one the next seed")
          .within(1, 1 << 20)
          .excludes(ids);
  const auto batch =
      app.add_option("--batch", request.batch,
                     "prompts and samples that are answered together, of any lengths; more take "
                     "more memory and less time, and the answers change only by rounding")
          .shows_default()
          .within(1, 1 << 16)
          .excludes(ids);
  app.add_flag("--json", request.json, "print one JSON line per sample").excludes(ids);
  const auto chat =
      app.add_flag("--chat", request.chat,
                   "answer as the assistant of a conversation, in the template of the model; "
                   "without a prompt, each line of the standard input is a turn")
          .excludes(ids);
  app.add_option(
         "--template", request.chat_template,
         "plain, llama2, llama3, chatml or mistral; default: that of the tokenizer, else plain")
      .needs(chat);
  app.add_option("--system", request.system, "system prompt of a conversation").needs(chat);
  const auto logits =
      app.add_option("--logits", request.logits,
                     "write the logits [ids, vocabulary] of the prompt to this .npy file instead")
          .needs(ids);
  const auto timings =
      app.add_flag("--timings", request.timings,
                   "print the tokens per second read and written to standard error")
          .excludes(logits);
  const auto audio =
      app.add_option("--audio", request.audio,
                     "sound files (a.wav,b.flac) for models with audio input; --prompt has "
                     "<|audio|> once for each file, or the files come first")
          .excludes(ids)
          .excludes(prompts)
          .excludes(samples)
          .excludes(batch)
          .excludes(chat)
          .excludes(timings);
  app.add_option("--tokens", request.tokens, "number of tokens to generate").within(1, 1 << 30);
  const auto temperature =
      app.add_option(
             "--temperature", request.choice.temperature,
             "sampling temperature; 0: always the most likely token (the default with --audio)")
          .within(0.0, 100.0);
  app.add_option("--top-k", request.choice.top_k,
                 "sample from the top k tokens; 0: from all tokens")
      .within(0, 1 << 30);
  app.add_option("--top-p", request.choice.top_p, "nucleus sampling: total probability p")
      .within(0.0, 1.0);
  app.add_option("--seed", request.choice.seed, "random seed");
  add_ema_option(app, request.ema);
  app.add_option("--device", request.device, "auto, cpu or cuda").shows_default();
  app.add_option("--precision", request.precision,
                 "fp32, bf16-mixed, fp16-mixed; default: as trained");
  add_tensor_option(app, request.tensor);
  if (const auto code = parse(app, call)) return *code;
  if (!prompt.given() && audio.given()) request.prompt.clear();
  if (!temperature.given() && audio.given()) request.choice.temperature = 0;
  request.talks = request.chat && !prompt.given() && !prompts.given();
  return with_mpi([&](MpiSession& session) {
    if (request.talks && samples.given()) {
      DeckError error("--samples is for prompts; a conversation has one answer per turn",
                      "give --prompt or --prompts");
      error.set_agreed_ranks(session.size());
      throw error;
    }
    return audio.given() ? generate_from_audio(session, heard(request))
                         : generate(session, request);
  });
}

}  // namespace choir
