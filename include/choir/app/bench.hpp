#pragma once
// The kinds of `choir bench`; each parses its own arguments and returns the exit code.
#include <string>
#include <vector>

#include "choir/app/commands.hpp"

namespace choir {

int bench_step_command(const Arguments& arguments);
int bench_comm_command(const Arguments& arguments);
int bench_readers_command(const Arguments& arguments);
int bench_ops_command(const Arguments& arguments);
int bench_gemm_command(const Arguments& arguments);
int bench_attention_command(const Arguments& arguments);

const std::vector<Command>& bench_kinds();

}  // namespace choir
