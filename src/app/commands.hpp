#pragma once
// One function per subcommand; each parses its own arguments and returns the exit code.
#include <string>
#include <vector>

namespace choir {

using Arguments = std::vector<std::string>;

int train_command(const Arguments& arguments);
int eval_command(const Arguments& arguments);
int generate_command(const Arguments& arguments);
int import_command(const Arguments& arguments);
int export_command(const Arguments& arguments);
int transcribe_command(const Arguments& arguments);
int speak_command(const Arguments& arguments);
int talk_command(const Arguments& arguments);
int prepare_command(const Arguments& arguments);
int plan_command(const Arguments& arguments);
int rehearse_command(const Arguments& arguments);
int calibrate_command(const Arguments& arguments);
int tune_command(const Arguments& arguments);
int inspect_command(const Arguments& arguments);
int verify_command(const Arguments& arguments);
int doctor_command(const Arguments& arguments);
int bench_command(const Arguments& arguments);
int report_command(const Arguments& arguments);

struct Command {
  const char* name;
  const char* summary;
  int (*run)(const Arguments&);
};
const std::vector<Command>& commands();

}  // namespace choir
