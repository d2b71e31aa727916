#pragma once
// What becomes of the rows of a bench: they are written to files, with where and with what it ran,
// and held against those of an earlier run, matched by what was measured.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/device/device.hpp"

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

/// Pure. The objects that --json writes: "rows" with "seconds" each, or a whole run with
/// "median_seconds". Throws DeckError when the baseline is of another bench or no such object.
BaselineComparison compare_with_baseline(const nlohmann::json& baseline, const nlohmann::json& run,
                                         double tolerance);
/// Ends in a line with VALID or INVALID.
std::string to_string(const BaselineComparison& comparison);

/// Files beside the table, by --csv and --json. "-" is standard output, in place of the table.
struct BenchFiles {
  std::string csv, json;
  std::string baseline;    ///< a file that --json wrote earlier
  double tolerance = 0.1;  ///< a row may take so much more of its time of then

  bool table() const { return csv != "-" && json != "-"; }
  /// While nothing has been measured yet: throws StorageError when results cannot be written,
  /// DeckError when the baseline cannot be read.
  void require_writable() const;
  /// Throws StorageError.
  void write(const std::string& csv_text, const std::string& json_text) const;
  /// For rank 0. Writes; compares with the baseline, and prints what comes of it (where the table
  /// would be, else to standard error). The exit code of the bench. Throws StorageError, DeckError.
  int finish(const std::string& csv_text, const std::string& json_text, bool valid) const;
};

/// Collective over the world. At rank 0 a JSON object: build, deck ("" none), hosts, processors
/// and their clocks, GPUs, libraries, batch job, and what of the environment can change a result.
/// Elsewhere "".
std::string bench_provenance(Mesh& mesh, const Device& device, const std::string& deck_text,
                             const std::vector<std::string>& overrides);

}  // namespace choir
