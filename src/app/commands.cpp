#include "src/app/commands.hpp"

namespace choir {

const std::vector<Command>& commands() {
  static const std::vector<Command> table{
      {"train", "train a model from a deck, or resume a run", train_command},
      {"eval", "evaluate a checkpoint on its validation data", eval_command},
      {"generate", "generate text with a checkpoint", generate_command},
      {"import",
       "create a run from a model of another program: transformers, llama.cpp, nanoGPT, llm.c",
       import_command},
      {"export", "write a checkpoint as a model for another program", export_command},
      {"transcribe", "transcribe sound files with a speech checkpoint", transcribe_command},
      {"speak", "encode and decode sound files, or decode codes, with a codec", speak_command},
      {"talk", "hold a dialogue with a duplex checkpoint: text and sound while it listens",
       talk_command},
      {"prepare", "prepare text or audio for training; create corpora", prepare_command},
      {"verify", "check that a deck trains the same in every layout", verify_command},
      {"plan", "predict memory, messages and work of any layout; list the layouts that fit",
       plan_command},
      {"calibrate", "measure this machine, so that plan predicts the time of a step",
       calibrate_command},
      {"rehearse", "simulate start, step and save of thousands of ranks on one process",
       rehearse_command},
      {"tune", "find the largest batches that fit into memory, and write a deck", tune_command},
      {"inspect", "show the contents of a checkpoint", inspect_command},
      {"report", "write an HTML page about runs or benchmarks", report_command},
      {"doctor", "check this machine: ranks, hosts, cores, versions, bandwidth", doctor_command},
      {"bench", "measure a step, ops, communication, readers; summarise a sweep", bench_command},
  };
  return table;
}

}  // namespace choir
