// Drills: what happens to servers and clients as a whole. Each repeats as often as stated for 10 s, and more or less
// often for another time.
#ifndef SEINE_TESTS_SOAK_DRILLS_DRILLS_H_
#define SEINE_TESTS_SOAK_DRILLS_DRILLS_H_

#include "tests/soak/drills/fronts.h"
#include "tests/soak/member.h"

namespace seine::soak {

// Servers are told to end while clients of every kind are at work. Each ends with 0 within the grace, health says
// NOT_SERVING before a call is refused, what was acknowledged is there, and what was not ends with a code that says so.
void Ends(const RunOptions& options, Result* result);
// Clients that hold same-host channels are killed at work. Descriptors and memory are back within 2 s.
void Kills(const RunOptions& options, Result* result);
// A server is killed while it snapshots, restores, restores on start, or writes its snapshots at the end. The next one
// has every snapshot that was completed, bit for bit, and no half of one.
void KillSnapshots(const RunOptions& options, Result* result);
// A family moves while tokens come, and the source, the target or the mover is killed in one of the move's calls. A
// node that is killed is started again. At most one node takes the family's changes, nothing that was acknowledged and
// is in a snapshot is lost, and no node answers for what it has given up.
void KillMoves(const RunOptions& options, Result* result);
// A server is killed while its idle tier writes families out and brings them back. Every answer before is right. The
// next server has the families that an orderly end has written, and nothing of what the tier had.
void KillIdle(const RunOptions& options, Result* result);
// Servers live, end and start again over one folder, by chance (tests/service/snapshots/random_lives_test.cc): nothing
// that an end has written is lost. The seed is the first life's.
void Lives(const RunOptions& options, Result* result);
// A flood of resets on a front, through which another client decodes meanwhile: the front cuts the flood's connections
// off, the server behind it grows by at most 64 MiB, and every step is answered.
void RunFront(const FrontProgram& program, const RunOptions& options, Result* result);

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_DRILLS_DRILLS_H_
