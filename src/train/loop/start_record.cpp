#include "src/train/loop/start_record.hpp"

#include <fmt/core.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "choir/core/error.hpp"
#include "choir/core/log.hpp"
#include "src/core/file.hpp"
#include "src/core/output.hpp"
#include "src/store/directory.hpp"
#include "src/train/loop/run_directory.hpp"

namespace choir {
namespace {

std::int64_t bytes_of_log(const std::string& path) {
  std::error_code absent;
  const auto bytes = std::filesystem::file_size(path, absent);
  return absent ? 0 : static_cast<std::int64_t>(bytes);
}

}  // namespace

StartRecord::StartRecord(const RunDirectory& directory) : directory_(directory) {
  std::error_code unknown;
  had_run_ = std::filesystem::exists(directory.deck(), unknown);
}

void StartRecord::before_log() {
  log_bytes_ = bytes_of_log(directory_.log());
}

void StartRecord::end(const std::exception& error, bool everywhere, int rank) {
  if (!owned_ || (everywhere && rank != 0)) return;
  const std::string end = fmt::format("ended with exit code {}: {}",
                                      static_cast<int>(failure_of(error).code), error.what());
  try {
    if (had_run_ && !begun_) {
      if (rank == 0) set_aside(end);
      return;
    }
    Logger log(false);
    log.to_file(directory_.log());
    log.error("{}", end);
  } catch (const std::exception&) {
  }
}

void StartRecord::set_aside(const std::string& end) const {
  std::ostringstream lines;
  {
    std::ifstream log(directory_.log(), std::ios::binary);
    log.seekg(log_bytes_);
    lines << log.rdbuf();
  }
  directory_.require_owned();
  if (bytes_of_log(directory_.log()) > log_bytes_)
    std::filesystem::resize_file(directory_.log(), static_cast<std::uintmax_t>(log_bytes_));
  write_text_file(
      directory_.path() + "/refused.txt",
      lines.str() + printable("this start was refused, and the run is as it was: " + end + "\n"));
}

}  // namespace choir
