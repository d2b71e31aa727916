#pragma once
// The runs below a folder, in short: the lines of `choir runs`, and the runs of which `choir report
// FOLDER` makes one page. Local; no MPI, no model.
#include <string>
#include <vector>

#include "src/report/run_record.hpp"

namespace choir::report {

/// True for a folder with the deck of a run and its log, metrics or checkpoints, and for one that a
/// refused first start left: a log and checkpoints.
bool is_run_folder(const std::string& path);

/// The run directories at or below `folder`, sorted by name. Nothing inside a run directory is
/// looked at, and links are not followed. Throws DataError if there is no such folder, and if no
/// run is below it.
std::vector<std::string> run_folders(const std::string& folder);

/// A line of the list.
struct ListedRun {
  std::string path;
  std::string state;  ///< name_of(Fate), or "imported" for a model of another program
  std::string began;  ///< local time of the last start; "" if unknown
  std::string model;  ///< model.type
  std::string deck;   ///< the deck file that was given; "" if unknown
  double step = 0, max_steps = 0;
  double loss = 0, val_loss = 0;  ///< the newest; NaN if there is none
};

/// The values of ListedRun::state.
std::vector<std::string> run_states();

/// Pure.
ListedRun listed(const ReportedRun& run);

/// A table with a header; or one JSON object per line, in which a loss that is not known is null.
/// Pure.
std::string run_table(const std::vector<ListedRun>& runs);
std::string run_lines(const std::vector<ListedRun>& runs);

}  // namespace choir::report
