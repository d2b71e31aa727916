#include "src/app/commands.hpp"

namespace choir {

const std::vector<Command>& commands() {
  static const std::vector<Command> table{
      {"train", "train a model from a deck, or continue", train_command},
      {"eval", "loss of a checkpoint on its validation data", eval_command},
      {"generate", "text from a checkpoint", generate_command},
      {"import", "a run from a model of another program: transformers, llama.cpp, nanoGPT, llm.c",
       import_command},
      {"export", "a model for another program from a checkpoint", export_command},
      {"transcribe", "text of sound files by a speech checkpoint", transcribe_command},
      {"speak", "what a codec makes of sound files, or of codes", speak_command},
      {"talk", "a dialogue with a duplex checkpoint: text and sound while it listens",
       talk_command},
      {"prepare", "turn text or audio into what training reads; make corpora", prepare_command},
      {"verify", "does a deck train the same in every layout?", verify_command},
      {"plan", "memory, messages and work of any layout, and which layouts fit", plan_command},
      {"calibrate", "measure this machine, so that plan predicts the time of a step",
       calibrate_command},
      {"rehearse", "start, step and save of thousands of ranks, of which a few are played",
       rehearse_command},
      {"tune", "the largest batches that fit into memory, as a deck", tune_command},
      {"inspect", "what is in a checkpoint", inspect_command},
      {"report", "curves and facts of runs, or of benchmarks, as one page", report_command},
      {"doctor", "ranks, hosts, cores, versions, bandwidth; is this machine all right?",
       doctor_command},
      {"bench", "measure a step, the ops, the communication, the readers; sum up a sweep",
       bench_command},
  };
  return table;
}

}  // namespace choir
