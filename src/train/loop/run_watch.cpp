#include "choir/train/loop/run_watch.hpp"

#include "choir/comm/watch/flight_exchange.hpp"
#include "choir/core/process.hpp"
#include "choir/train/loop/weight_check.hpp"

namespace choir {
namespace {

std::string flight_directory(const std::string& run_directory) {
  return run_directory + "/flight";
}

std::shared_ptr<const FlightExchange> exchange_with_others(Mesh& mesh, const HeartbeatBoard& board,
                                                           const std::string& run_directory) {
  if (board.sees_all(mesh.world().size())) return nullptr;  // on every rank or on none
  return std::make_shared<FlightExchange>(mesh.world(), board.leader(),
                                          flight_directory(run_directory));
}

WatchSection with_usual(WatchSection deck, double usual) {
  for (double* seconds : {&deck.start, &deck.first_step, &deck.save, &deck.evaluation})
    if (*seconds <= 0) *seconds = usual;
  return deck;
}

}  // namespace

RunWatch::RunWatch(const Deck& deck, Mesh& mesh, const std::string& run_directory)
    : deck_(with_usual(deck.watch, deck.parallel.timeout)),
      usual_(deck.parallel.timeout),
      board_(mesh.node(), mesh.rank()),
      dog_({.timeout_seconds = usual_,
            .rank = mesh.rank(),
            .host = host_name(),
            .on_timeout = {},
            .board = &board_,
            .directory = flight_directory(run_directory),
            .still_seconds = mesh.rank() == 0 ? deck.watch.still : 0,
            .on_line = {},
            .exchange = exchange_with_others(mesh, board_, run_directory)}),
      rehearsal_(rehearsal_of(mesh.world())) {
  dog_.allow(deck_.first_step);
}

void RunWatch::step(std::string_view doing, std::int64_t begun) {
  rehearse("step");
  if (first_step_ && begun > 0) {
    first_step_ = false;
    dog_.allow(usual_);
  }
  dog_.beat(doing);
}

void RunWatch::after_step(Engine& engine, std::int64_t step) {
  if (!weights_due(step)) return;
  dog_.beat("comparing weights");
  check_weights(engine, step);
}

void RunWatch::report_ranks(Mesh& mesh, std::int64_t step, Logger& log, MetricsFile& metrics) {
  if (deck_.ranks == 0 || times_.steps() < deck_.ranks || mesh.world().size() == 1) return;
  const RankTimesReport report = times_.report(mesh);
  if (mesh.rank() != 0) return;
  if (report.steady)
    log.warn("{}; steadily slow: check that node's clock, temperature, memory and other jobs",
             to_string(report));
  else
    log.info("{}", to_string(report));
  metrics.write(to_json(report, step));  // the log line of the step reports a full disk
}

}  // namespace choir
