#pragma once
// Rows of benchmarks, as `choir bench step --csv` and bench/scaling.sh write them.
#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace choir::report {

struct ScalingRow {
  std::map<std::string, std::string> cells;
  bool valid = false;
  double ranks = 0;
  double rate = 0;  ///< tokens a second; of speech seconds of audio a second

  std::string text(const std::string& column) const;  ///< "" without such a column
  double number(const std::string& column) const;     ///< 0 without
};

struct ScalingTable {
  std::string path;
  std::vector<std::string> columns;  ///< of all its headers
  std::vector<ScalingRow> rows;
  std::size_t invalid = 0;  ///< of them
  std::size_t damaged = 0;  ///< lines that were no rows
  std::string unit;         ///< of rate
};

/// Cells of a line; quotes as in RFC 4180.
std::vector<std::string> split_csv(const std::string& line);
/// Throws DataError: no file, no header with ranks, tok_s and valid, no VALID row.
ScalingTable read_scaling(const std::string& path);
ScalingTable parse_scaling(const std::string& text, const std::string& path);

}  // namespace choir::report
