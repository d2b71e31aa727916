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
  std::string state;  ///< name_of(Fate)
  std::string began;  ///< local time of the last start; "" if unknown
  std::string model;  ///< model.type
  std::string deck;   ///< the deck file that was given; "" if unknown
  double step = 0, max_steps = 0;
  double loss = 0, val_loss = 0;            ///< the newest; NaN if there is none
  double loss_step = 0, val_loss_step = 0;  ///< the steps after which they were logged
  std::string score;                        ///< name of the main metric: "wer"; "" if none
  double score_value = 0;                   ///< its newest value; NaN if there is none
  std::string deck_crc32c;                  ///< of deck.json: equal for runs of one deck
  std::string revision;                     ///< of the program that ran last; "" if unknown
};

/// True for a run whose only starts were refused, so that it has neither a step nor a save.
bool never_began(const ReportedRun& run);
/// A line on refused runs that a list or page of a folder leaves out; "" for none. `remedy`
/// completes it: "--all shows".
std::string note_on_refused(std::int64_t runs, const std::string& remedy);

/// The values of ListedRun::state.
std::vector<std::string> run_states();

/// Pure.
ListedRun listed(const ReportedRun& run);

/// The list of runs that a folder of runs keeps for programs: FOLDER/index.jsonl for the run
/// FOLDER/NAME; "" for a run that is not in a folder of its own ("NAME").
std::string index_of_runs(const std::string& run);

/// Adds the line of a run to its index_of_runs(); the last line of a run counts. Returns "" or, if
/// the file could not be written, a message. Does nothing for a run without a step. Local.
std::string add_to_index(const std::string& run);

/// A table with a header, which has a column of scores if a run has one; or one JSON object per
/// line, in which a loss that is not known is null. Pure.
std::string run_table(const std::vector<ListedRun>& runs);
std::string run_lines(const std::vector<ListedRun>& runs);

}  // namespace choir::report
