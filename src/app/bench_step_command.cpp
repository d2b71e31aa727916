// choir bench step DECK.json [key.path=value ...]
#include <fmt/core.h>

#include "choir/app/bench.hpp"
#include "choir/app/session.hpp"
#include "choir/comm/agreement.hpp"
#include "choir/train/bench_step.hpp"
#include "choir/train/run_setup.hpp"
#include "choir/train/workplace.hpp"

namespace choir {
namespace {

struct Request {
  std::string deck;
  Arguments overrides;
  StepBenchOptions options;
  bool json = false, csv = false;
};

int run(MpiSession& session, const Request& request) {
  if (const auto wrong = wrong_launcher(session.size()))
    throw CommError(*wrong, "`choir doctor` tells more");
  auto world = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi);
  const std::string text = read_everywhere(world->world(), request.deck);
  Deck deck;
  together(world->world(), [&] { deck = parse_deck(text, request.deck, request.overrides); });
  world.reset();
  Workplace place;
  place.mesh = Mesh::over_world(layout_of(deck, session.size()), transport_of(deck));
  choose_threads(place.mesh->node());
  open_device(place, deck);
  Logger log(session.rank() == 0);
  if (!request.json && !request.csv) log.to_stdout();
  const StepBench bench =
      bench_step(std::move(deck), *place.mesh, *place.device, log, request.options);
  if (session.rank() == 0) {
    if (request.json) fmt::print("{}\n", to_json(bench));
    if (request.csv) fmt::print("{}\n{}\n", csv_header(), to_csv(bench));
    log.plain(to_string(bench));
  }
  return static_cast<int>(bench.valid() ? ExitCode::done : ExitCode::other);
}

}  // namespace

int bench_step_command(const Arguments& arguments) {
  CLI::App app(
      "Times the training step of a deck: the real engine and data, no evaluation, no checkpoints.",
      "choir bench step");
  Request request;
  app.add_option("deck", request.deck, "the deck")->required();
  app.add_option("overrides", request.overrides, "key.path=value");
  app.add_option("--seconds", request.options.max_seconds, "at most so many seconds of timed steps")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str();
  app.add_flag("--json", request.json, "one JSON object");
  app.add_flag("--csv", request.csv, "a header and a row");
  if (const auto code = parse(app, arguments)) return *code;
  request.options.min_seconds = std::min(request.options.min_seconds, request.options.max_seconds);
  return with_mpi([&](MpiSession& session) { return run(session, request); });
}

}  // namespace choir
