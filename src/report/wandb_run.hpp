#pragma once
// Conversion of a run to an offline run of Weights & Biases, which `wandb sync FOLDER` uploads. All
// jobs of a chain become one run. Pure.
#include <string>

#include "src/report/run_record.hpp"

namespace choir::report {

struct WandbRun {
  std::string folder;  ///< "offline-run-20261124_120000-ID", with the start of the first job
  std::string file;    ///< "run-ID.wandb", the file in the folder
  std::string bytes;   ///< content of the file
};

/// Converts a run. Each line of metrics becomes a step of the history, whose time follows from the
/// starts of the jobs and the seconds per step; the deck becomes the configuration, section by
/// section; the last value of every curve becomes the summary. The same run always has the same ID,
/// so that a longer one replaces it. Source of the format: wandb's wandb_internal.proto and
/// datastore.py.
WandbRun wandb_run(const ReportedRun& run);

}  // namespace choir::report
