// Times of work that is neither a product nor attention, from whole steps of small models: the
// operands of operations between products are in caches or not, as in training.
#include <algorithm>
#include <array>
#include <cmath>

#include "choir/core/median.hpp"
#include "choir/lab/bench/bench_step.hpp"
#include "choir/train/step/run_setup.hpp"
#include "choir/train/step/step_planner.hpp"
#include "src/lab/calibrate/calibrate_parts.hpp"

namespace choir {
namespace {

/// The sum of a record's places that belong to one phase.
PlaceTime parts_of_phase(const MachineRates& rates, const WorkRecord& record, WorkPart part) {
  PlaceTime sum;
  for (const auto& [place, work] : record.places) {
    if (place.part != part) continue;
    const PlaceTime parts = rates.parts(work);
    sum.products += parts.products, sum.attention += parts.attention;
    sum.bytes += parts.bytes, sum.flops += parts.flops;
  }
  return sum;
}

using PhaseSeconds = std::array<double, kPhases>;

/// The phases of a step of each deck, on every rank by itself; the mean over the ranks.
std::vector<PhaseSeconds> phases_of(const std::vector<Deck>& decks, Mesh& mesh, Device& device,
                                    Logger& log, bool brief) {
  const auto silent = Mesh::planned(Layout(), 0, 1);
  silent->attach(device);
  std::vector<std::array<std::vector<double>, kPhases>> rounds(decks.size());
  for (int round = 0; round < (brief ? 1 : kCalibrationRounds); ++round)
    for (std::size_t i = 0; i < decks.size(); ++i) {
      mesh.world().barrier();
      const StepBench bench = bench_step(decks[i], *silent, device, log, probe_options(brief));
      for (std::size_t p = 0; p < kPhases; ++p)
        rounds[i][p].push_back(mean_over(mesh.world(), bench.phases[p].median));
    }
  std::vector<PhaseSeconds> all(decks.size());
  for (std::size_t i = 0; i < decks.size(); ++i)
    std::transform(rounds[i].begin(), rounds[i].end(), all[i].begin(), median_of);
  return all;
}

constexpr int kUnknowns = 3;
using Row = std::array<double, kUnknowns + 1>;  // coefficients, and their sum

/// Solves least squares without negative values by descent along one coordinate after the other.
std::array<double, kUnknowns> solve(const std::vector<Row>& rows) {
  std::array<double, kUnknowns> x{1, 0, 0};
  for (int round = 0; round < 2000; ++round)
    for (int u = 0; u < kUnknowns; ++u) {
      double up = 0, down = 0;
      for (const Row& row : rows) {
        double rest = row[kUnknowns];
        for (int other = 0; other < kUnknowns; ++other)
          if (other != u)
            rest -= row[static_cast<std::size_t>(other)] * x[static_cast<std::size_t>(other)];
        const double mine = row[static_cast<std::size_t>(u)];
        up += mine * rest, down += mine * mine;
      }
      // Products always cost time, even if noise suggests otherwise.
      const double least = u == 0 ? 0.5 : 0;
      if (down > 0) x[static_cast<std::size_t>(u)] = std::max(least, up / down);
    }
  return x;
}

}  // namespace

StreamTimes fit_streams(const std::vector<FittedPhase>& phases) {
  // Bytes and FLOPs are scaled by their largest values, because descent would converge slowly
  // otherwise.
  double bytes = 1, flops = 1;
  for (const FittedPhase& p : phases)
    bytes = std::max(bytes, p.parts.bytes), flops = std::max(flops, p.parts.flops);
  std::vector<Row> rows;
  for (const FittedPhase& p : phases)
    rows.push_back({p.parts.products / p.seconds, p.parts.bytes / bytes / p.seconds,
                    p.parts.flops / flops / p.seconds,
                    (p.seconds - p.parts.attention) / p.seconds});
  const auto x = solve(rows);
  StreamTimes times{.product_factor = x[0], .per_byte = x[1] / bytes, .per_flop = x[2] / flops};
  double squares = 0;
  for (const Row& row : rows) {
    const double error = row[0] * x[0] + row[1] * x[1] + row[2] * x[2] - row[kUnknowns];
    squares += error * error;
  }
  times.fit_error = std::sqrt(squares / static_cast<double>(std::max<std::size_t>(1, rows.size())));
  return times;
}

void add_steps(Calibration& to, Mesh& mesh, Device& device, Logger& log,
               const std::string& precision, bool brief) {
  const MachineRates rates(to);
  const std::vector<Deck> decks = probe_decks(precision, to.device, brief);
  const std::vector<PhaseSeconds> measured = phases_of(decks, mesh, device, log, brief);
  std::vector<FittedPhase> phases;
  std::vector<double> rest;
  std::vector<UpdateTime> updates;
  for (std::size_t i = 0; i < decks.size(); ++i) {
    const BatchSizes batch = [&] {
      Deck resolved = decks[i];
      return resolve_batch(resolved, 1);
    }();
    WorkRecord record;
    plan_step(engine_options(decks[i], batch), Layout(), 0, 1, false, &device, false, &record);
    const auto seconds = [&](Phase phase) { return measured[i][static_cast<std::size_t>(phase)]; };
    phases.push_back({parts_of_phase(rates, record, WorkPart::forward), seconds(Phase::forward)});
    phases.push_back({parts_of_phase(rates, record, WorkPart::backward), seconds(Phase::backward)});
    updates.push_back({precision, parts_of_phase(rates, record, WorkPart::update).bytes,
                       seconds(Phase::optimizer)});
    rest.push_back(seconds(Phase::other) + seconds(Phase::data) + seconds(Phase::comm));
  }
  StreamTimes times = fit_streams(phases);
  times.precision = precision;
  times.step = median_of(rest);
  to.streams.push_back(times);
  std::sort(updates.begin(), updates.end(),
            [](const UpdateTime& a, const UpdateTime& b) { return a.bytes < b.bytes; });
  to.updates.insert(to.updates.end(), updates.begin(), updates.end());
}

}  // namespace choir
