#pragma once
// Tables of benchmark rows, as written by `choir bench step --csv` and bench/scaling.sh.
#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace choir::report {

struct ScalingRow {
  std::map<std::string, std::string> cells;
  bool valid = false;
  double ranks = 0;
  double rate = 0;  ///< tokens per second; with speech, seconds of audio per second

  std::string text(const std::string& column) const;  ///< "" if there is no such column
  double number(const std::string& column) const;     ///< 0 if there is no such column
};

struct ScalingTable {
  std::string path;
  std::vector<std::string> columns;  ///< the columns of all headers
  std::vector<ScalingRow> rows;
  std::size_t invalid = 0;  ///< number of invalid rows
  std::size_t damaged = 0;  ///< lines that are not rows
  std::string unit;         ///< unit of `rate`
};

/// Splits a line into cells; quotes as in RFC 4180.
std::vector<std::string> split_csv(const std::string& line);
/// Reads a table. Throws DataError if there is no file, no header with ranks, tok_s and valid, or
/// no VALID row.
ScalingTable read_scaling(const std::string& path);
ScalingTable parse_scaling(const std::string& text, const std::string& path);

}  // namespace choir::report
