#include "choir/train/report/scaling_table.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "choir/core/error.hpp"

namespace choir::report {

std::string ScalingRow::text(const std::string& column) const {
  const auto found = cells.find(column);
  return found == cells.end() ? "" : found->second;
}

double ScalingRow::number(const std::string& column) const {
  const double value = std::strtod(text(column).c_str(), nullptr);
  return std::isfinite(value) ? value : 0;
}

std::vector<std::string> split_csv(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"')
      cells.back() += line[++i];
    else if (c == '"')
      quoted = !quoted;
    else if (c == ',' && !quoted)
      cells.emplace_back();
    else if (c != '\r')
      cells.back() += c;
  }
  return cells;
}

ScalingTable parse_scaling(const std::string& text, const std::string& path) {
  ScalingTable table;
  table.path = path;
  std::istringstream lines(text);
  bool speech = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    std::vector<std::string> cells = split_csv(line);
    if (table.columns.empty()) {
      table.columns = cells;
      for (const char* needed : {"ranks", "tok_s", "valid"})
        if (std::find(cells.begin(), cells.end(), needed) == cells.end())
          throw DataError(fmt::format("{} has no column '{}' in its first line", path, needed),
                          "name files of `choir bench step --csv` or of bench/scaling.sh");
      continue;
    }
    if (cells == table.columns) continue;  // several runs in one file
    ScalingRow row;
    for (std::size_t i = 0; i < cells.size() && i < table.columns.size(); ++i)
      row.cells[table.columns[i]] = std::move(cells[i]);
    row.ranks = row.number("ranks");
    if (cells.size() != table.columns.size() || row.ranks < 1) {
      ++table.damaged;
      continue;
    }
    row.valid = row.text("valid") == "VALID" && row.number("tok_s") > 0;
    speech = speech || row.number("real_time") > 0;
    table.invalid += !row.valid;
    table.rows.push_back(std::move(row));
  }
  if (table.columns.empty())
    throw DataError(path + " is empty", "an interrupted sweep: run it again");
  if (table.invalid == table.rows.size())
    throw DataError(fmt::format("{}: none of its {} rows is VALID: there is nothing to draw", path,
                                table.rows.size()),
                    "the output of the benchmark says why a row is INVALID; run the sweep again");
  for (ScalingRow& row : table.rows) row.rate = row.number(speech ? "real_time" : "tok_s");
  table.unit = speech ? "seconds of audio a second" : "tokens a second";
  return table;
}

ScalingTable read_scaling(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw DataError(fmt::format("cannot read '{}'", path), "is it there, and readable?");
  return parse_scaling({std::istreambuf_iterator<char>(file), {}}, path);
}

}  // namespace choir::report
