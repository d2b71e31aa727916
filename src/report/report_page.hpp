#pragma once
// The page of `choir report`: one self-contained HTML file, and its tables of benchmark rows, as
// written by `choir bench step --csv` and bench/scaling.sh. Pure.

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "src/report/dialogue.hpp"
#include "src/report/run_record.hpp"

namespace choir::report {

struct ScalingRow {
  std::map<std::string, std::string> cells;
  bool valid = false;
  bool noisy = false;  ///< its times are not reliable (column `noisy`)
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
  std::size_t noisy = 0;    ///< number of valid rows that are noisy
  std::size_t damaged = 0;  ///< lines that are not rows
  std::string unit;         ///< unit of `rate`
};

/// Splits a line into cells; quotes as in RFC 4180.
std::vector<std::string> split_csv(const std::string& line);
/// Reads a table. Throws DataError if there is no file, no header with ranks, tok_s and valid, or
/// no VALID row.
ScalingTable read_scaling(const std::string& path);
ScalingTable parse_scaling(const std::string& text, const std::string& path);

/// Returns the page of runs, benchmark tables and dialogues; any of them may be empty.
std::string report_page(const std::vector<ReportedRun>& runs,
                        const std::vector<ScalingTable>& tables,
                        const std::vector<RecordedDialogue>& dialogues = {});

// The parts of the page.
std::string page_style();
/// Shows the values of a chart under the pointer; the page needs nothing else and no network.
std::string page_script();
/// The curves of all runs, overlaid.
std::string curves_section(const std::vector<ReportedRun>& runs);
/// The time of a step by phases.
std::string phases_section(const std::vector<ReportedRun>& runs);
std::string memory_section(const std::vector<ReportedRun>& runs);
/// The mesh of ranks as cells, with a colour per node.
std::string layout_section(const std::vector<ReportedRun>& runs);
std::string events_section(const std::vector<ReportedRun>& runs);
std::string samples_section(const std::vector<ReportedRun>& runs);
/// Scores of evaluation tasks, one row for each task and checkpoint.
std::string evaluations_section(const std::vector<ReportedRun>& runs);
/// The keys in which the decks differ, and each deck with the sources of its values.
std::string deck_section(const std::vector<ReportedRun>& runs);
std::string provenance_section(const std::vector<ReportedRun>& runs);
std::string scaling_section(const ScalingTable& table);

/// The keys whose values differ between runs, without run.dir and run.name, which always differ.
std::vector<std::string> differing_keys(const std::vector<ReportedRun>& runs);

/// Sentences that explain why the numbers of these runs are not comparable; empty if they are.
std::vector<std::string> comparison_cautions(const std::vector<ReportedRun>& runs);

/// The number of colours. A run has the same colour in all charts.
inline constexpr int kColours = 8;
/// "<section><h2 id=title>title</h2>body</section>".
std::string section(const std::string& title, const std::string& body);

}  // namespace choir::report
