#pragma once
// The reports of the benches. Each says whether it is valid, and is written as a table by
// to_string(), as CSV with a header, and as one JSON object with rows and provenance. Pure; a
// BenchReport adds the threads, and the build where it has no provenance.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "choir/data/tokens/bench_readers.hpp"
#include "choir/lab/bench/bench_collectives.hpp"
#include "choir/lab/bench/bench_save.hpp"
#include "choir/ops/bench_row.hpp"

namespace choir {

/// For ops, matrix products and attention.
struct BenchReport {
  std::string bench;                  ///< "ops"
  std::string device;                 ///< description
  std::vector<std::string> ceilings;  ///< "copy 3.9 TB/s", what rows are held against
  std::vector<ops::BenchRow> rows;
  std::vector<std::string> remarks;
  std::string provenance;  ///< a JSON object; "": that of the build

  bool valid() const;
};
std::string to_string(const BenchReport& report);
std::string to_csv(const BenchReport& report);
std::string to_json(const BenchReport& report);

struct CollectivesReport {
  std::string device, note, provenance;
  int ranks = 1;
  std::vector<CollectiveRow> rows;
  /// In host memory, with several ranks on a node.
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

  std::int64_t wrong() const;  ///< blocks
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

/// What saves are held against: the median over the rounds, judged in the same round.
struct CheckpointBar {
  std::string name;  ///< "stall of total"
  std::string text;
  double value = 0, low = 0, high = 0, limit = 0;
  bool at_least = false;  ///< the value must not be below the limit; else it must be below
  bool judged = true;     ///< false: what it is held against is not known
  bool met() const { return at_least ? value >= limit : value < limit; }
};
std::vector<CheckpointBar> bars_of(const SaveBench& run);

std::string to_string(const CheckpointReport& report);
std::string to_csv(const CheckpointReport& report);
std::string to_json(const CheckpointReport& report);

}  // namespace choir
