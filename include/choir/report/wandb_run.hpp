#pragma once
// A run as an offline run of Weights & Biases, which `wandb sync FOLDER` sends: all jobs of a chain
// are one run there. Pure.
#include <string>

#include "choir/report/run_record.hpp"

namespace choir::report {

struct WandbRun {
  std::string folder;  ///< "offline-run-20261124_120000-ID", of the first job's start
  std::string file;    ///< "run-ID.wandb" in it
  std::string bytes;   ///< of the file
};

/// A step of the history for every line of metrics, whose times follow from those of the jobs'
/// starts and the seconds a step; the deck as configuration, section by section; the last value of
/// every curve as summary. The same run has the same ID whenever it is written, so that a longer
/// one replaces it. Source of the format: wandb's wandb_internal.proto and datastore.py.
WandbRun wandb_run(const ReportedRun& run);

}  // namespace choir::report
