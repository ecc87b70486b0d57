// SPDX-License-Identifier: Apache-2.0
//! A PostgreSQL server of the test's own, and its clients.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// On a socket in a folder, without a port. Stopped when dropped.
pub struct Postgres {
    programs: PathBuf,
    user: (u32, u32),
    folder: TempDir,
}

impl Postgres {
    /// `None` where PostgreSQL is not installed.
    pub fn start() -> Option<Self> {
        let programs = installed()?;
        let user = user_postgres()?;
        let folder = tempfile::tempdir().expect("a temporary folder");
        chown(folder.path(), Some(user.0), Some(user.1)).expect("the folder is given to the server");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).expect("and to it alone");
        let server = Postgres { programs, user, folder };
        let data = server.data();
        let data = data.to_str().expect("a UTF-8 path");
        server.run("initdb", &["-D", data, "-A", "trust", "--no-sync"]);
        let options = format!("-k {} -c listen_addresses=", server.folder.path().display());
        let log = format!("{data}/log");
        server.run("pg_ctl", &["-D", data, "-w", "-l", &log, "-o", &options, "start"]);
        Some(server)
    }

    /// The process that starts all others.
    pub fn pid(&self) -> u32 {
        let file = fs::read_to_string(self.data().join("postmaster.pid")).expect("the server runs");
        file.lines().next().and_then(|line| line.parse().ok()).expect("its pid is the first line")
    }

    /// The file of the server's program.
    pub fn program(&self) -> PathBuf {
        self.programs.join("postgres")
    }

    /// Runs a program as the server's user, with the server in its environment, and returns its output.
    pub fn run(&self, program: &str, args: &[&str]) -> String {
        let output = self.command(program, args).output().expect("the program starts");
        assert!(output.status.success(), "{program} {args:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// The path of a file that its clients can read.
    pub fn script(&self, text: &str) -> String {
        let path = self.folder.path().join("script.sql");
        fs::write(&path, text).expect("a file is written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("for all");
        path.to_str().expect("a UTF-8 path").to_owned()
    }

    /// One value from the server.
    pub fn ask(&self, query: &str) -> String {
        self.run("psql", &["-X", "-A", "-t", "-c", query, "postgres"])
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        let (user, group) = (format!("--reuid={}", self.user.0), format!("--regid={}", self.user.1));
        command.args([&user, &group, "--clear-groups"]).arg(self.programs.join(program)).args(args);
        command.current_dir(self.folder.path()).env("PGHOST", self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // pg_ctl's server would keep a pipe of this open for ever.
        if program != "pg_ctl" {
            command.stdout(Stdio::piped());
        }
        command
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let data = self.data();
        let _ =
            self.command("pg_ctl", &["-D", data.to_str().unwrap_or("."), "-m", "immediate", "stop"]).status();
    }
}

/// Debian keeps the programs of each version in a folder of their own: the newest.
fn installed() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten().map(|entry| entry.path().join("bin"));
    let mut complete: Vec<PathBuf> = versions.filter(|programs| programs.join("initdb").exists()).collect();
    complete.sort();
    complete.pop()
}

fn user_postgres() -> Option<(u32, u32)> {
    let users = fs::read_to_string(Path::new("/etc/passwd")).ok()?;
    let fields: Vec<&str> = users.lines().find(|line| line.starts_with("postgres:"))?.split(':').collect();
    Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
}
