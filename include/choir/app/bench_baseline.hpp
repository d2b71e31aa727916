#pragma once
// Rows of a bench against those of an earlier run, matched by what was measured. Pure.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace choir {

struct BaselineRow {
  std::string what;          ///< the fields that name the row, "all_reduce dp node 1024"
  double then = 0, now = 0;  ///< seconds
  double ratio() const { return now / then; }
};

struct BaselineComparison {
  std::string origin;             ///< "c918bde on host, 2026-11-22 ..."
  std::vector<BaselineRow> rows;  ///< in both runs
  int only_then = 0, only_now = 0;
  double tolerance = 0.1;
  /// Rows that take more than 1 + tolerance of the time they took.
  std::vector<BaselineRow> regressions() const;
  bool holds() const { return !rows.empty() && regressions().empty(); }
};

/// The objects that --json writes: "rows" with "seconds" each, or a whole run with
/// "median_seconds". Throws DeckError when the baseline is of another bench or no such object.
BaselineComparison compare_with_baseline(const nlohmann::json& baseline, const nlohmann::json& run,
                                         double tolerance);
/// Ends in a line with VALID or INVALID.
std::string to_string(const BaselineComparison& comparison);

}  // namespace choir
