#pragma once
// The entry point of choir as a library. A program with a family of models of its own is a main()
// that passes the family to run(); it then has all subcommands of choir for its models too:
//
//   int main(int argc, char** argv) { return choir::run(argc, argv, {&my_family()}); }

#include <vector>

#include "choir/models/family.hpp"

namespace choir {

/// Runs `choir SUBCOMMAND ...` with the arguments of main() and returns the exit code: 0 done; 75
/// saved, start again to continue; 2 deck or command line; 3 data; 4 numeric; 5 communication; 6
/// storage; 1 anything else. Errors are printed, not thrown. An error that the ranks did not agree
/// on ends all of them with MPI_Abort.
///
/// `families` are added to the families of choir; they must outlive the call. Their names are
/// values of model.type, their keys are keys of decks, and every subcommand treats their models as
/// its own. Two families with the same name are an error with exit code 1.
///
/// Collective: all processes that a launcher started must call it, with the same arguments and
/// families. It must be called once, from main() and before other threads are started: it starts
/// and ends MPI, sets handlers of signals, and may execute the program again to correct the
/// environment of OpenMP.
int run(int argc, char** argv, const std::vector<const ModelFamily*>& families = {});

}  // namespace choir
