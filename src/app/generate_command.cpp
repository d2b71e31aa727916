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
#include "src/data/audio/audio_decoder.hpp"
#include "src/data/chat/chat_template.hpp"
#include "src/data/chat/conversation.hpp"
#include "src/data/vocabulary/utf8.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/models/gpt/foreign/logit_check.hpp"
#include "src/models/gpt/generator.hpp"
#include "src/models/gpt/gpt.hpp"
#include "src/models/gpt/text_writer.hpp"
#include "src/models/salm/generator.hpp"
#include "src/run/loaded_model.hpp"
#include "src/run/run_setup.hpp"
#include "src/run/token_choice.hpp"

namespace choir {

namespace {

/// A question to a model with audio input, about sound files or without any.
struct HearRequest {
  std::string prompt;
  Arguments clips;  ///< sound files, in the order of their tags
  ChannelChoice channel;
  std::int64_t tokens = 200;
  TokenChoice choice;
  bool json = false;
};

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

/// Throws DeckError for a checkpoint without audio input, and if the clips do not match the tags
/// <|audio|> of the prompt (a prompt without tags gets them in front); DataError for files that are
/// not audio. Collective.
int answer_heard(MpiSession& session, LoadedModel loaded, Workplace& place,
                 const HearRequest& request) {
  Communicator& world = place.mesh->world();
  HeardPrompt prompt;
  together(world, [&] {
    require_ability(loaded, loaded.deck.family().hears(), "has no audio input", "salm");
    prompt = read_prompt(model_of(loaded.deck), loaded.vocabulary, loaded.checkpoint.path,
                         tagged_prompt(request), request.clips, request.channel);
  });
  load_instance(loaded, {prompt.shape()}, place);
  const bool writes = session.rank() == 0, streams = writes && !request.json;
  if (writes)
    for (const std::string& note : prompt.notes())
      print_safely(stderr, "choir: {}\n", printable_name(note));
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

struct GenerateRequest {
  const FamilyTable& families;
  std::string checkpoint, prompt = "\n", precision, device = "auto";
  std::string ids;      ///< token ids instead of a text
  std::string prompts;  ///< a file of prompts, or "-", instead of one prompt
  TextOptions text{.choice = {.temperature = 0.8}};
  bool talks = false;  ///< the standard input has the turns of a conversation
  std::string logits;  ///< file for the logits of the prompt
  int tensor = 1;
  std::string audio;    ///< sound files, comma-separated, for a model with audio input
  std::string channel;  ///< of sound files with several
  bool ema = false;
  bool prompted = false, chose_temperature = false;  ///< options that were given
};

/// The question of `r`, which by default is answered greedily.
HearRequest heard(const GenerateRequest& r) {
  HearRequest request{.prompt = r.prompted ? r.prompt : "",
                      .clips = r.audio.empty() ? Arguments() : split(r.audio, ','),
                      .channel = channel_choice_of(r.channel),
                      .tokens = r.text.tokens,
                      .choice = r.text.choice,
                      .json = r.text.json};
  if (!r.chose_temperature) request.choice.temperature = 0;
  return request;
}

/// Refuses what a model with audio input cannot do: it answers one question at a time.
void require_one_question(const GenerateRequest& request) {
  const char* option = request.text.chat                ? "--chat"
                       : !request.prompts.empty()       ? "--prompts"
                       : !request.ids.empty()           ? "--ids"
                       : request.text.samples > 1       ? "--samples"
                       : request.text.log_probabilities ? "--logprobs"
                                                        : nullptr;
  if (option == nullptr) return;
  throw DeckError(fmt::format("{} is for models of text; {} has audio input, and answers one "
                              "question at a time",
                              option, request.checkpoint),
                  "give --prompt, and --audio FILE for a question about a recording");
}

void show_times(const Generator& generator, const GenerateRequest& request, bool writes) {
  if (request.text.timings && writes) print_safely(stderr, "{}\n", generator.times().to_string());
}

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
  const auto tokens = generator.generate(prompt, request.text.tokens, request.text.choice);
  if (writes) print_safely("{}\n", fmt::join(tokens, ","));
  show_times(generator, request, writes);
}

/// The text of a file, or of the standard input for "-", for the option `name`. Collective.
std::string text_behind(const std::string& name, const std::string& path, const char* expected,
                        Communicator& world) {
  constexpr std::size_t kMostMib = 256;
  std::string text;
  together(world, [&] {
    if (world.rank() != 0) return;
    CappedText read = path == "-" ? read_capped(std::cin, kMostMib)
                                  : read_capped_file(path, kMostMib, Pipes::read);
    if (!read.fault.empty())
      throw DataError(
          fmt::format("{}: {} {}", name, path == "-" ? "the standard input" : path, read.fault),
          expected);
    text = std::move(read.text);
  });
  broadcast_text(world, text);
  return text;
}

/// Reads the prompts of --prompts, or takes the one of --prompt. Collective.
std::vector<Prompt> prompts_of(const GenerateRequest& request, Communicator& world) {
  if (request.prompts.empty())
    return {{.place = "--prompt", .id = "", .text = request.prompt, .turns = {}}};
  const std::string text =
      text_behind("--prompts", request.prompts,
                  "expected a file with one prompt per line, or - for the standard input", world);
  std::vector<Prompt> prompts;
  together(world, [&] {
    prompts = read_prompts(
        text, request.prompts == "-" ? std::string("the standard input") : request.prompts);
  });
  return prompts;
}

/// Replaces `--prompt -` by the whole standard input, without its last line end. Collective.
void read_piped_prompt(GenerateRequest& request, Communicator& world) {
  if (!request.prompted || request.prompt != "-") return;
  request.prompt = text_behind("--prompt", "-", "expected a text", world);
  if (request.prompt.ends_with('\n')) request.prompt.pop_back();
}

/// Treats the lines of the standard input as turns of a user until it ends. Collective.
void talk(const LoadedModel& loaded, const GenerateRequest& request, Communicator& world,
          bool writes) {
  std::optional<TextWriter> writer;
  together(world, [&] { writer.emplace(loaded, request.text, writes); });
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

int generate(MpiSession& session, GenerateRequest request) {
  Workplace place;
  place.mesh = inference_mesh(session, request.tensor);
  Communicator& world = place.mesh->world();
  choose_threads(place.mesh->node());
  read_piped_prompt(request, world);
  const std::vector<Prompt> prompts = prompts_of(request, world);
  LoadedModel opened = open_model(request.families, request.checkpoint, request.precision,
                                  *place.mesh, with_ema({"device=" + request.device}, request.ema));
  if (!request.audio.empty() || opened.deck.family().hears()) {
    HearRequest question;
    together(world, [&] {
      if (request.audio.empty()) require_one_question(request);
      question = heard(request);
    });
    return answer_heard(session, std::move(opened), place, question);
  }
  const std::int64_t answers = request.talks ? 1 : std::ssize(prompts) * request.text.samples;
  const LoadedModel loaded =
      load_generator(std::move(opened), place, std::min(request.text.batch, answers));
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
      TextWriter(loaded, request.text, writes).write_all(prompts);
    else
      write_ids(loaded, request, writes);
  });
  return 0;
}

}  // namespace

int generate_command(const Invocation& call) {
  CommandLine app(
      "Continues a prompt. CHECKPOINT is a checkpoint, or a run directory (its newest). Files and "
      "pipes receive the bytes of the text; a terminal shows control characters as escapes. "
      "Example: "
      "`choir generate runs/quickstart --prompt ROMEO: --tokens 100`",
      "choir generate");
  GenerateRequest request{.families = call.families};
  app.add_option("checkpoint", request.checkpoint, "checkpoint or run directory").required();
  const auto prompt =
      app.add_option("--prompt", request.prompt, "text to continue; - is the whole standard input");
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
             "--samples", request.text.samples,
             "continuations of each prompt; the first uses --seed, each further one the next seed")
          .within(1, 1 << 20)
          .excludes(ids);
  const auto batch =
      app.add_option("--batch", request.text.batch,
                     "prompts and samples that are answered together, of any lengths; more take "
                     "more memory and less time, and the answers change only by rounding")
          .shows_default()
          .within(1, 1 << 16)
          .excludes(ids);
  const auto json =
      app.add_flag("--json", request.text.json, "print one JSON line per sample").excludes(ids);
  const auto logprobs =
      app.add_flag("--logprobs", request.text.log_probabilities,
                   "with --json: also the natural log-probability of every generated token, at "
                   "temperature 1; null for an answer that ends beyond the model's positions")
          .needs(json);
  const auto chat =
      app.add_flag("--chat", request.text.chat,
                   "answer as the assistant of a conversation, in the template of the model; "
                   "without a prompt, each line of the standard input is a turn")
          .excludes(ids);
  app.add_option(
         "--template", request.text.chat_template,
         fmt::format("own (the model's chat template), {}; default: own if it has one, else "
                     "detected from the tokenizer's control tokens, else plain",
                     kChatTemplates))
      .needs(chat);
  app.add_option("--system", request.text.system, "system prompt of a conversation").needs(chat);
  const auto logits =
      app.add_option("--logits", request.logits,
                     "write the logits [ids, vocabulary] of the prompt to this .npy file instead")
          .needs(ids);
  const auto timings =
      app.add_flag("--timings", request.text.timings,
                   "print the tokens per second read and written to standard error")
          .excludes(logits);
  const auto audio =
      app.add_option("--audio", request.audio,
                     "sound files (a.wav,b.flac) of one question, for models with audio input; "
                     "--prompt has <|audio|> once for each file, or the files come first")
          .excludes(ids)
          .excludes(prompts)
          .excludes(samples)
          .excludes(batch)
          .excludes(logprobs)
          .excludes(chat)
          .excludes(timings);
  app.add_option("--channel", request.channel,
                 "channel of sound files with several: average, or a number from 0; default: "
                 "average, with a note")
      .needs(audio);
  app.add_option("--tokens", request.text.tokens, "number of tokens to generate")
      .shows_default()
      .within(1, 1 << 30);
  const auto temperature =
      app.add_option("--temperature", request.text.choice.temperature,
                     "sampling temperature; 0: always the most likely token (the default of "
                     "models with audio input)")
          .shows_default()
          .within(0.0, 100.0);
  app.add_option("--top-k", request.text.choice.top_k,
                 "sample from the top k tokens; 0: from all tokens")
      .shows_default()
      .within(0, 1 << 30);
  app.add_option("--top-p", request.text.choice.top_p, "nucleus sampling: total probability p")
      .shows_default()
      .within(0.0, 1.0);
  app.add_option("--seed", request.text.choice.seed, "random seed").shows_default();
  add_ema_option(app, request.ema);
  app.add_option("--device", request.device, "auto, cpu or cuda").shows_default();
  app.add_option("--precision", request.precision,
                 "fp32, bf16-mixed, fp16-mixed; default: as trained");
  add_tensor_option(app, request.tensor);
  if (const auto code = parse(app, call)) return *code;
  request.prompted = prompt.given();
  request.chose_temperature = temperature.given();
  request.talks = request.text.chat && !prompt.given() && !prompts.given();
  return with_mpi([&](MpiSession& session) {
    if (request.talks && samples.given()) {
      DeckError error("--samples is for prompts; a conversation has one answer per turn",
                      "give --prompt or --prompts");
      error.set_agreed_ranks(session.size());
      throw error;
    }
    return generate(session, request);
  });
}

}  // namespace choir
