#pragma once
// Output of the rows of a bench: they are written to files together with their provenance, and
// compared with the rows of an earlier run that measured the same.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/device/device.hpp"
#include "src/core/contention.hpp"

namespace choir {

struct BaselineRow {
  std::string what;          ///< the fields that identify the row, "all_reduce dp node 1024"
  double then = 0, now = 0;  ///< seconds
  double ratio() const { return now / then; }
};

struct BaselineComparison {
  std::string origin;             ///< "c918bde on host, 2026-11-22 ..."
  std::vector<BaselineRow> rows;  ///< the rows that both runs have
  int only_then = 0, only_now = 0;
  double tolerance = 0.1;
  /// The rows that take more than 1 + tolerance times as long as before.
  std::vector<BaselineRow> regressions() const;
  bool holds() const { return !rows.empty() && regressions().empty(); }
};

/// Compares two objects that --json wrote: "rows" with "seconds" each, or a whole run with
/// "median_seconds". Pure. Throws DeckError if the baseline belongs to another bench or is no such
/// object.
BaselineComparison compare_with_baseline(const nlohmann::json& baseline, const nlohmann::json& run,
                                         double tolerance);
/// The text ends with a VALID or INVALID line.
std::string to_string(const BaselineComparison& comparison);

/// Output files besides the table, given by --csv and --json. "-" is standard output, in place of
/// the table.
struct BenchFiles {
  std::string csv, json;
  std::string baseline;  ///< a file that --json wrote earlier
  /// Allowed growth of a row's time, as a fraction of the time in the baseline.
  double tolerance = 0.1;

  bool table() const { return csv != "-" && json != "-"; }
  /// Checks the files before anything is measured. Throws StorageError if the results cannot be
  /// written, DeckError if the baseline cannot be read.
  void require_writable() const;
  /// Throws StorageError.
  void write(const std::string& csv_text, const std::string& json_text) const;
  /// Writes the results, compares them with the baseline and prints the comparison (to standard
  /// output if the table is printed there, else to standard error). Called on rank 0. Returns the
  /// exit code of the bench. Throws StorageError, DeckError.
  int finish(const std::string& csv_text, const std::string& json_text, bool valid) const;
};

/// Collective over the world. Returns a JSON object on rank 0: build, deck (absent if `deck_text`
/// is empty), hosts, processors and their clocks, GPUs, libraries, batch job, and the environment
/// variables that can change a result. Returns "" on the other ranks.
std::string bench_provenance(Mesh& mesh, const Device& device, const std::string& deck_text,
                             const std::vector<std::string>& overrides);

/// noise_text() of the rank that was disturbed most since `meter` began. Ranks that share cores on
/// purpose, because they have together more threads than their node has cores, wait for each other:
/// there only the share of a hypervisor counts. Collective over the world, equal on every rank.
std::string noise_among(Mesh& mesh, const ContentionMeter& meter);

}  // namespace choir
