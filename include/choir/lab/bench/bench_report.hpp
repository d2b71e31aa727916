#pragma once
// The reports of the benches. Each knows if it is valid, and can be written as a table by
// to_string(), as CSV with a header, and as one JSON object with rows and provenance. The functions
// are pure, except that a BenchReport adds the number of threads, and the build if it has no
// provenance.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "choir/data/tokens/bench_readers.hpp"
#include "choir/lab/bench/bench_collectives.hpp"
#include "choir/lab/bench/bench_save.hpp"
#include "choir/ops/bench_row.hpp"

namespace choir {

/// The report of operations, matrix products or attention.
struct BenchReport {
  std::string bench;                  ///< "ops"
  std::string device;                 ///< description
  std::vector<std::string> ceilings;  ///< the rates that rows are compared with: "copy 3.9 TB/s"
  std::vector<ops::BenchRow> rows;
  std::vector<std::string> remarks;
  std::string provenance;  ///< a JSON object; "": the provenance of the build

  bool valid() const;
};
std::string to_string(const BenchReport& report);
std::string to_csv(const BenchReport& report);
std::string to_json(const BenchReport& report);

struct CollectivesReport {
  std::string device, note, provenance;
  int ranks = 1;
  std::vector<CollectiveRow> rows;
  /// Measured only in host memory, with several ranks on a node.
  std::optional<AllReduceComparison> comparison;

  std::int64_t wrong() const;
  bool valid() const { return wrong() == 0 && !rows.empty(); }
};
std::string to_string(const CollectivesReport& report);
std::string to_csv(const CollectivesReport& report);
std::string to_json(const CollectivesReport& report);

struct ReaderReport {
  std::int64_t bytes = 0;
  int ranks = 1;
  std::string folder, provenance;
  std::vector<ReaderSpeed> rows;

  std::int64_t wrong() const;  ///< number of wrong blocks
  bool valid() const { return wrong() == 0; }
};
std::string to_string(const ReaderReport& report);
std::string to_csv(const ReaderReport& report);
std::string to_json(const ReaderReport& report);

struct CheckpointReport {
  SaveBench run;
  std::string what;    ///< the deck, or "--bytes N"
  std::string layout;  ///< "" without a deck
  std::string device, folder, provenance;

  bool valid() const { return run.access.valid(); }
};

/// A limit that saves must meet. The value is the median over the rounds; both sides of a ratio
/// come from the same round.
struct CheckpointBar {
  std::string name;  ///< "stall of total"
  std::string text;
  double value = 0, low = 0, high = 0, limit = 0;
  bool at_least = false;  ///< true: the value must be at least the limit; false: it must be below
  bool judged = true;     ///< false: there is no reference value to judge against
  bool met() const { return at_least ? value >= limit : value < limit; }
};
std::vector<CheckpointBar> bars_of(const SaveBench& run);

std::string to_string(const CheckpointReport& report);
std::string to_csv(const CheckpointReport& report);
std::string to_json(const CheckpointReport& report);

}  // namespace choir
