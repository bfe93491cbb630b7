/*
 * What a unix socket says of its peer: SO_PEERCRED.
 *
 * CRIU makes both ends of a restored connection at once, as root. So when a tree is
 * saved, what each connected unix socket says is written, as a line with its inode, the
 * pid, the user and the group, to the descriptor in WAYPOINT_UNIX_PEERS. From that
 * kernel/criu/unix_peers.py makes a line with user and group for each connection that
 * needs it, and puts the number of the line into high bits of the type of the socket,
 * which CRIU passes on to socketpair(). At a restore the lines are read from the
 * descriptor in WAYPOINT_SAVED_UNIX_PEERS, and the connection is made as that user.
 */
#pragma once

#define UNIX_PEERS "WAYPOINT_UNIX_PEERS"
#define SAVED_UNIX_PEERS "WAYPOINT_SAVED_UNIX_PEERS"
#define PEER_SHIFT 20 /* above the types and flags of sockets */
