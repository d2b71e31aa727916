#include "choir/train/run_watch.hpp"

#include "choir/comm/mpi_session.hpp"
#include "choir/train/weight_check.hpp"

namespace choir {
namespace {

// So that the watchdogs of other nodes, which wait for the same, have their say.
constexpr double kGrace = 2;

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
            .directory = run_directory + "/flight",
            .still_seconds = mesh.rank() == 0 ? deck.watch.still : 0,
            .on_still = {},
            .grace_seconds = board_.sees_all(mesh.world().size()) ? 0 : kGrace}) {
  dog_.allow(deck_.first_step);
}

void RunWatch::step(std::string_view doing, std::int64_t begun) {
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
    log.warn("{}; steadily slow: look at that node's clock, temperature, memory and neighbours",
             to_string(report));
  else
    log.info("{}", to_string(report));
  metrics.write(to_json(report, step));  // the line of the step says when the disk is full
}

}  // namespace choir
