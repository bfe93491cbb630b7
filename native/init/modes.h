/* One function for each way to start the program; each returns an exit status. */
#pragma once

int branch_main(int argc, char **argv);
int enter_main(int argc, char **argv);
int here_main(int argc, char **argv);
int init_main(int argc, char **argv);
int machine_main(int argc, char **argv);
int relay_main(int argc, char **argv);
int relocations_main(int argc, char **argv);
