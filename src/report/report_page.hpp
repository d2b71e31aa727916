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

/// A kernel of `choir bench ops`, `gemm` or `attention`.
struct KernelRow {
  std::string bench, name, shape, dtype;
  double seconds = 0, flops = 0, bytes = 0;  ///< of one call
  double intensity() const { return flops / bytes; }
  double rate() const { return flops / seconds; }
};

/// The kernels of one machine, and its roofs.
struct KernelTable {
  std::string path, device;
  std::vector<KernelRow> rows;          ///< valid rows with FLOPs and bytes
  double bandwidth = 0;                 ///< measured bytes/s of a large copy; 0: not in the file
  std::map<std::string, double> peaks;  ///< measured FLOP/s of a large product, by dtype
  std::size_t left_out = 0;             ///< rows that are not valid or lack FLOPs or bytes
  std::string noise;                    ///< what disturbed the measurement; "": nothing
};

/// True if the file begins with the header of `choir bench ops --csv`.
bool is_kernel_table(const std::string& path);
/// Reads the rows of one or several benches. Throws DataError if none has FLOPs and bytes, as in
/// files of older programs.
KernelTable parse_kernels(const std::string& text, const std::string& path);
KernelTable read_kernels(const std::string& path);
/// Adds a table to the one of the same device, if there is one.
void add_kernels(std::vector<KernelTable>& tables, KernelTable more);

/// The training for which the tables of a benchmark tell time and price.
struct TrainingGoal {
  double tokens = 0;     ///< targets, or hours of speech for speech; 0: no time to solution
  double price = 0;      ///< of an hour of one GPU, or of one core on CPUs; 0: no price
  std::string currency;  ///< "EUR"
};

/// Returns the page of runs, benchmark tables, kernels and dialogues; any of them may be empty.
std::string report_page(const std::vector<ReportedRun>& runs,
                        const std::vector<ScalingTable>& tables,
                        const std::vector<RecordedDialogue>& dialogues = {},
                        const std::vector<KernelTable>& kernels = {},
                        const TrainingGoal& goal = {});

// The parts of the page.
std::string page_style();
/// The page for WeasyPrint, which applies no style of the page to drawings, and knows neither
/// variables in them nor grids with a variable number of columns: every drawing has a style of its
/// own, in light colours, and two figures stand side by side.
std::string page_for_weasyprint(std::string page);
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
/// The samples with the most errors in the last evaluation of each run.
std::string worst_section(const std::vector<ReportedRun>& runs);
/// The keys in which the decks differ, and each deck with the sources of its values.
std::string deck_section(const std::vector<ReportedRun>& runs);
std::string provenance_section(const std::vector<ReportedRun>& runs);
std::string scaling_section(const ScalingTable& table, const TrainingGoal& goal = {});
/// The roofline of a machine with its kernels and the phases of a step of the runs on it.
std::string roofline_section(const KernelTable& table, const std::vector<ReportedRun>& runs);

/// The keys whose values differ between runs, without run.dir and run.name, which always differ.
std::vector<std::string> differing_keys(const std::vector<ReportedRun>& runs);

/// Sentences that explain why the numbers of these runs are not comparable; empty if they are.
std::vector<std::string> comparison_cautions(const std::vector<ReportedRun>& runs);

/// The number of colours. A run has the same colour in all charts.
inline constexpr int kColours = 8;
/// "<section><h2 id=title>title</h2>body</section>".
std::string section(const std::string& title, const std::string& body);

}  // namespace choir::report
