// One row for dashboards that compare systems.
#include <algorithm>
#include <cmath>
#include <set>

#include "choir/core/error.hpp"
#include "src/core/json_value.hpp"
#include "src/core/stats.hpp"
#include "src/report/metric_lines.hpp"
#include "src/report/run_formats.hpp"

namespace choir::report {
namespace {

using nlohmann::ordered_json;

/// The median over the lines of metrics; null if there is no number.
ordered_json median_of(const Curve& curve) {
  const double median = median_of_lines(curve.y);
  return std::isfinite(median) ? ordered_json(median) : ordered_json(nullptr);
}

/// Counts are integers, not 1040.0.
ordered_json whole(double count) {
  return clamped_integer(count);
}

ordered_json last_of(const Curve& curve) {
  if (curve.y.empty() || !std::isfinite(curve.y.back())) return nullptr;
  return curve.y.back();
}

/// A value of the deck; null if it is unknown.
ordered_json deck_entry(const ReportedRun& run, const std::string& key) {
  const nlohmann::json value = document_of(run.deck_value(key));
  if (!value.is_discarded()) return ordered_json(value);
  const std::string text = run.deck_value(key);  // of a string, without its quotes
  return text.empty() ? ordered_json(nullptr) : ordered_json(text);
}

ordered_json provenance_of(const ReportedRun& run) {
  ordered_json all = ordered_json::object();
  for (const auto& [key, value] : run.start.provenance) all[key] = value;
  all["deck"] = run.deck_files.empty() ? "" : run.deck_files.back();
  all["deck_crc32c"] = run.deck_crc32c;
  return all;
}

}  // namespace

std::string scale_row(const ReportedRun& run) {
  if (run.empty())
    throw DataError("'" + run.path + "' has no step, so it has no row",
                    "a run writes its first line after its first step; see its log.txt");
  std::set<std::string> hosts;
  std::int64_t threads = 0;  // of the rank that has the most
  int nodes = 0;
  for (const RankPlace& rank : run.start.ranks) {
    hosts.insert(rank.host);
    nodes = std::max(nodes, rank.node + 1);
    threads = std::max<std::int64_t>(threads, rank.threads);
  }
  const ordered_json dt = median_of(run.curve("dt")), energy = median_of(run.curve("energy_j"));
  const bool power = dt.is_number() && energy.is_number() && dt.get<double>() > 0;
  const RunStart& start = run.start;
  // Earlier jobs may have had other ranks, whose rates are in the curve as well.
  const ordered_json rate = median_of(run.curve("tps"));
  const ordered_json of_rank =
      rate.is_number() && !start.ranks.empty()
          ? ordered_json(rate.get<double>() / static_cast<double>(start.ranks.size()))
          : median_of(run.curve("tps_per_gpu"));
  return dumped(ordered_json{
      {"format", "choir-scale-row-1"},
      {"name", run.name},
      {"state", name_of(run.fate)},
      {"time", run.starts.empty() ? start.time : run.starts.front().time},
      {"system", {{"device", start.device}, {"hosts", hosts}}},
      {"scale",
       {{"nodes", nodes},
        {"ranks", start.ranks.size()},
        {"threads_per_rank", threads},
        {"data_parallel", start.dp},
        {"tensor_parallel", start.tp},
        {"pipeline_parallel", start.pp},
        {"context_parallel", start.cp}}},
      {"model", {{"type", deck_entry(run, "model.type")}, {"parameters", whole(start.parameters)}}},
      {"efficiency",
       {{"step_seconds", dt},
        {"tokens_per_second", rate},
        {"tokens_per_second_per_rank", of_rank},
        {"sequences_per_second", median_of(run.curve("sps"))},
        {"audio_seconds_per_second", median_of(run.curve("rtfx"))},
        {"mfu_percent", median_of(run.curve("mfu"))},
        {"training_seconds", run.stepping_seconds()}}},
      {"energy",
       {{"joules_per_step", energy},
        {"joules_per_token", median_of(run.curve("j_per_token"))},
        {"mean_watts",
         power ? ordered_json(energy.get<double>() / dt.get<double>()) : ordered_json(nullptr)},
        {"joules_total", last_of(run.curve("energy_total_j"))}}},
      {"result",
       {{"steps", whole(run.steps_done())},
        {"loss", last_of(run.curve("loss"))},
        {"val_loss", last_of(run.curve("val_loss"))}}},
      {"provenance", provenance_of(run)}});
}

}  // namespace choir::report
