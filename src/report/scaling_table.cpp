#include "choir/report/scaling_table.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "choir/core/capped_text.hpp"
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

namespace {

constexpr std::array kNeeded{"ranks", "tok_s", "valid"};

bool has(const std::vector<std::string>& cells, const std::string& cell) {
  return std::find(cells.begin(), cells.end(), cell) != cells.end();
}

/// True for a header. A file may have several tables; headers of older programs have fewer columns.
bool is_header(const std::vector<std::string>& cells) {
  return std::all_of(kNeeded.begin(), kNeeded.end(),
                     [&](const char* needed) { return has(cells, needed); });
}

}  // namespace

ScalingTable parse_scaling(const std::string& text, const std::string& path) {
  ScalingTable table;
  table.path = path;
  std::istringstream lines(text);
  std::vector<std::string> columns;  // of the last header
  bool speech = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    std::vector<std::string> cells = split_csv(line);
    if (columns.empty())
      for (const char* needed : kNeeded)
        if (!has(cells, needed))
          throw DataError(fmt::format("{} has no column '{}' in its first line", path, needed),
                          "give files of `choir bench step --csv` or bench/scaling.sh");
    if (is_header(cells)) {
      columns = std::move(cells);
      for (const std::string& column : columns)
        if (!has(table.columns, column)) table.columns.push_back(column);
      continue;
    }
    ScalingRow row;
    for (std::size_t i = 0; i < cells.size() && i < columns.size(); ++i)
      row.cells[columns[i]] = std::move(cells[i]);
    row.ranks = row.number("ranks");
    if (cells.size() != columns.size() || row.ranks < 1) {
      ++table.damaged;
      continue;
    }
    row.valid = row.text("valid") == "VALID" && row.number("tok_s") > 0;
    speech = speech || row.number("real_time") > 0;
    table.invalid += !row.valid;
    table.rows.push_back(std::move(row));
  }
  if (table.columns.empty())
    throw DataError(path + " is empty", "the sweep may have been interrupted: run it again");
  if (table.invalid == table.rows.size())
    throw DataError(
        fmt::format("{}: none of its {} rows is VALID", path, table.rows.size()),
        "the output of the benchmark explains why a row is INVALID; run the sweep again");
  for (ScalingRow& row : table.rows) row.rate = row.number(speech ? "real_time" : "tok_s");
  table.unit = speech ? "seconds of audio per second" : "tokens per second";
  return table;
}

ScalingTable read_scaling(const std::string& path) {
  constexpr std::size_t kMostMiB = 256;
  const auto [text, fault] = read_capped_file(path, kMostMiB, Pipes::read);
  if (!fault.empty())
    throw DataError(fmt::format("'{}' {}", path, fault), "check the path and its permissions");
  return parse_scaling(text, path);
}

}  // namespace choir::report
