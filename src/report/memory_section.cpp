// Memory of rank 0: the plan, its entries, and the measured use.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "choir/core/clock.hpp"
#include "choir/report/report_page.hpp"
#include "src/report/svg_chart.hpp"

namespace choir::report {
namespace {

constexpr double kMiB = 1 << 20;

struct Planned {
  double device = 0, all = 0;
};

Planned planned_of(const ReportedRun& run) {
  Planned sum;
  for (const PlannedMemory& entry : run.start.memory) {
    sum.all += entry.bytes;
    if (entry.place == "device") sum.device += entry.bytes;
  }
  return sum;
}

Curve mebibytes(Curve curve) {
  for (double& y : curve.y) y /= kMiB;
  return curve;
}

/// A constant over the steps of `like`.
Curve level(double bytes, const Curve& like) {
  return {.x = {like.x.front(), like.x.back()}, .y = {bytes / kMiB, bytes / kMiB}};
}

/// The memory that the engine allocated on its device, by its own count. (Runs of older versions
/// have no such curve.)
std::string allocated_chart(const ReportedRun& run, double planned) {
  const Curve& allocated = run.curve("allocated");
  if (allocated.x.empty()) return {};
  const bool cpu = run.start.device.starts_with("cpu");
  const double most = *std::max_element(allocated.y.begin(), allocated.y.end());
  Chart chart{.title = "Allocated by the model and its training",
              .unit = "MiB, rank 0",
              .from_zero = true,
              .shown = Chart::Shown::last};
  chart.series.push_back({.label = "allocated", .colour = 0, .curve = mebibytes(allocated)});
  chart.series.push_back(
      {.label = "planned", .colour = 1, .curve = level(planned, allocated), .dashed = true});
  chart.note = fmt::format(
      "Parameters, gradients, moments, and activations at their peak{}: {:.4g} % of the plan.",
      cpu ? "" : " on the GPU, without the memory of its libraries",
      planned > 0 ? 100 * most / planned : 0);
  return to_html(chart);
}

std::string resident_chart(const ReportedRun& run) {
  const Curve& resident = run.curve("mem");
  if (resident.x.empty()) return {};
  Chart chart{.title = "Resident in host memory",
              .unit = "MiB, process of rank 0",
              .from_zero = true,
              .shown = Chart::Shown::last};
  chart.series.push_back({.label = "resident", .colour = 0, .curve = mebibytes(resident)});
  const double before = run.start.resident_before;
  if (before > 0)
    chart.series.push_back({.label = "before the model was built",
                            .colour = 7,
                            .curve = level(before, resident),
                            .dashed = true});
  chart.note =
      "All memory that the system counts for the process, including libraries, buffers of MPI and "
      "the pages of data files that were read, which it reclaims when needed.";
  return to_html(chart);
}

std::string plan_card(const ReportedRun& run, const Planned& planned, bool named) {
  std::vector<PlannedMemory> entries = run.start.memory;
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  std::string rows, small;
  double rest = 0;
  for (const PlannedMemory& entry : entries) {
    const std::string name = entry.name + (entry.place == "device" ? "" : " (" + entry.place + ")");
    if (entry.bytes < 0.002 * planned.all) {  // the bar would be invisible
      small += (small.empty() ? "" : ", ") + name;
      rest += entry.bytes;
      continue;
    }
    rows += bar(name, format_bytes(entry.bytes), {{name, 0, entry.bytes}}, entries[0].bytes);
  }
  if (!small.empty())
    rows += fmt::format("<p class=note>Another {} in total for {}.</p>", format_bytes(rest),
                        escape_html(small));
  return fmt::format(
      "<div class=card style=align-self:start><h3>{}Planned for rank 0: {} on the "
      "device</h3>{}</div>",
      named ? escape_html(run.name) + ". " : "", format_bytes(planned.device), rows);
}

}  // namespace

std::string memory_section(const std::vector<ReportedRun>& runs) {
  std::string body;
  for (const ReportedRun& run : runs) {
    const Planned planned = planned_of(run);
    if (planned.all <= 0) continue;
    body += "<div class=grid" + std::string(body.empty() ? "" : " style=margin-top:14px") + ">" +
            plan_card(run, planned, runs.size() > 1) + "<div class=stack>" +
            allocated_chart(run, planned.device) + resident_chart(run) + "</div></div>";
  }
  return body.empty() ? "" : section("Memory: plan and use", body);
}

}  // namespace choir::report
