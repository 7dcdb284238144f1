//! The one thread that writes. It takes everything that waits, stores it in one transaction, and only then answers the
//! writers and tells the viewers.

use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, Transaction, TransactionBehavior, params};
use tokio::sync::{mpsc, oneshot};

use crate::error::SessionError;
use crate::event::{Event, NewEvent, NewSession};
use crate::live::Rooms;
use crate::store::{Limits, Turn};

/// Requests in one transaction.
const MOST_TOGETHER: usize = 512;

/// A request to the writer.
pub(crate) enum Request {
    Create { id: String, session: NewSession, now: Timestamp, reply: Reply<()> },
    Append { session: String, events: Vec<NewEvent>, turn: Option<Turn>, now: Timestamp, reply: Reply<u64> },
    Delete { session: String, reply: Reply<()> },
    Expire { before: Timestamp, reply: Reply<u64> },
}

pub(crate) type Reply<T> = oneshot::Sender<Result<T, SessionError>>;

/// The action that is due once a transaction is on disk.
enum Due {
    Done(Reply<()>, Result<(), SessionError>),
    Number(Reply<u64>, Result<u64, SessionError>),
    Deleted(Reply<()>, String),
    Expired(Reply<u64>, Vec<String>),
    Appended { reply: Reply<u64>, session: String, first: u64, events: Vec<Event> },
}

impl Due {
    fn fail(self, error: SessionError) {
        // A requester that does not wait any more is answered in vain.
        match self {
            Due::Done(reply, _) | Due::Deleted(reply, _) => drop(reply.send(Err(error))),
            Due::Number(reply, _) | Due::Expired(reply, _) | Due::Appended { reply, .. } => {
                drop(reply.send(Err(error)));
            }
        }
    }

    fn succeed(self, rooms: &Rooms) {
        match self {
            Due::Done(reply, result) => drop(reply.send(result)),
            Due::Number(reply, result) => drop(reply.send(result)),
            Due::Deleted(reply, session) => {
                rooms.close(&session);
                drop(reply.send(Ok(())));
            }
            Due::Expired(reply, sessions) => {
                sessions.iter().for_each(|session| rooms.close(session));
                drop(reply.send(Ok(sessions.len() as u64)));
            }
            Due::Appended { reply, session, first, events } => {
                rooms.publish(&session, events);
                drop(reply.send(Ok(first)));
            }
        }
    }
}

/// Serves requests until all senders are gone.
pub(crate) fn run(
    mut connection: Connection,
    mut requests: mpsc::Receiver<Request>,
    limits: Limits,
    rooms: &Arc<Rooms>,
) {
    while let Some(first) = requests.blocking_recv() {
        let mut together = vec![first];
        while together.len() < MOST_TOGETHER
            && let Ok(request) = requests.try_recv()
        {
            together.push(request);
        }
        let transaction = match connection.transaction_with_behavior(TransactionBehavior::Immediate) {
            Ok(transaction) => transaction,
            Err(error) => {
                for request in together {
                    refuse(request, error.to_string());
                }
                continue;
            }
        };
        let due: Vec<Due> =
            together.into_iter().map(|request| carry_out(&transaction, request, &limits)).collect();
        match transaction.commit() {
            Ok(()) => due.into_iter().for_each(|due| due.succeed(rooms)),
            Err(error) => {
                for due in due {
                    due.fail(SessionError::Database(error.to_string()));
                }
            }
        }
    }
}

fn refuse(request: Request, error: String) {
    let error = SessionError::Database(error);
    match request {
        Request::Create { reply, .. } | Request::Delete { reply, .. } => drop(reply.send(Err(error))),
        Request::Append { reply, .. } | Request::Expire { reply, .. } => drop(reply.send(Err(error))),
    }
}

fn carry_out(transaction: &Transaction<'_>, request: Request, limits: &Limits) -> Due {
    match request {
        Request::Create { id, session, now, reply } => {
            Due::Done(reply, all_or_nothing(transaction, || create(transaction, &id, &session, now)))
        }
        Request::Append { session, events, turn, now, reply } => {
            let appended = all_or_nothing(transaction, || {
                append(transaction, &session, &events, turn.as_ref(), now, limits)
            });
            match appended {
                Ok(Some(first)) => {
                    let stored = (first..).zip(events).map(|(offset, event)| Event {
                        offset,
                        time: now,
                        kind: event.kind,
                        source: event.source,
                        data: event.data,
                    });
                    let events = stored.collect();
                    Due::Appended { reply, session, first, events }
                }
                Ok(None) => {
                    let first = turn.map_or(Ok(0), |turn| stored_turn(transaction, &session, &turn));
                    Due::Number(reply, first)
                }
                Err(error) => Due::Number(reply, Err(error)),
            }
        }
        Request::Delete { session, reply } => {
            let deleted = all_or_nothing(transaction, || {
                let number = find(transaction, &session)?.number;
                delete(transaction, number)
            });
            match deleted {
                Ok(()) => Due::Deleted(reply, session),
                Err(error) => Due::Done(reply, Err(error)),
            }
        }
        Request::Expire { before, reply } => {
            let expired = all_or_nothing(transaction, || {
                let mut statement =
                    transaction.prepare_cached("SELECT number, id FROM sessions WHERE changed < ?")?;
                let found: Vec<(i64, String)> = statement
                    .query_map([before.as_millisecond()], |row| Ok((row.get(0)?, row.get(1)?)))?
                    .collect::<Result<_, _>>()?;
                for (number, _) in &found {
                    delete(transaction, *number)?;
                }
                Ok(found.into_iter().map(|(_, id)| id).collect())
            });
            match expired {
                Ok(sessions) => Due::Expired(reply, sessions),
                Err(error) => Due::Number(reply, Err(error)),
            }
        }
    }
}

/// Takes back what one request wrote if it fails, and leaves the others of its transaction.
fn all_or_nothing<T>(
    transaction: &Transaction<'_>,
    request: impl FnOnce() -> Result<T, SessionError>,
) -> Result<T, SessionError> {
    transaction.execute_batch("SAVEPOINT request")?;
    let result = request();
    let end = match &result {
        Ok(_) => "RELEASE request",
        Err(_) => "ROLLBACK TO request; RELEASE request",
    };
    transaction.execute_batch(end)?;
    result
}

fn create(
    transaction: &Transaction<'_>,
    id: &str,
    session: &NewSession,
    now: Timestamp,
) -> Result<(), SessionError> {
    let now = now.as_millisecond();
    let inserted = transaction.prepare_cached(
        "INSERT INTO sessions (id, title, project, task, agent, created, changed, first_offset, next_offset, bytes)
         VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, 0) ON CONFLICT (id) DO NOTHING",
    )?
    .execute(params![id, session.title, session.project, session.task, session.agent, now, now])?;
    match inserted {
        0 => Err(SessionError::Exists(id.to_owned())),
        _ => Ok(()),
    }
}

struct Found {
    number: i64,
    first_offset: i64,
    next_offset: i64,
    bytes: i64,
}

fn find(transaction: &Transaction<'_>, session: &str) -> Result<Found, SessionError> {
    transaction
        .prepare_cached("SELECT number, first_offset, next_offset, bytes FROM sessions WHERE id = ?")?
        .query_row([session], |row| {
            Ok(Found {
                number: row.get(0)?,
                first_offset: row.get(1)?,
                next_offset: row.get(2)?,
                bytes: row.get(3)?,
            })
        })
        .optional()?
        .ok_or_else(|| SessionError::NotFound(session.to_owned()))
}

/// Stores events and returns the offset of the first, or none if this turn of the writer was stored before.
fn append(
    transaction: &Transaction<'_>,
    session: &str,
    events: &[NewEvent],
    turn: Option<&Turn>,
    now: Timestamp,
    limits: &Limits,
) -> Result<Option<u64>, SessionError> {
    let found = find(transaction, session)?;
    if let Some(turn) = turn {
        match last_turn(transaction, found.number, &turn.writer)? {
            Some((number, _)) if number == turn.number => return Ok(None),
            Some((number, _)) if number > turn.number => {
                return Err(SessionError::Invalid {
                    field: "turn",
                    problem: format!(
                        "{} of writer `{}` is over: it is at {number}",
                        turn.number, turn.writer
                    ),
                });
            }
            _ => {}
        }
        transaction
            .prepare_cached(
                "INSERT OR REPLACE INTO turns (session, writer, number, first_offset) VALUES (?, ?, ?, ?)",
            )?
            .execute(params![found.number, turn.writer, turn.number.cast_signed(), found.next_offset])?;
    }
    let now = now.as_millisecond();
    let mut insert = transaction.prepare_cached(
        "INSERT INTO events (session, offset, time, kind, source, data) VALUES (?, ?, ?, ?, ?, ?)",
    )?;
    let mut added = 0;
    for (offset, event) in (found.next_offset..).zip(events) {
        let (kind, source) = (event.kind.name(), event.source.name());
        insert.execute(params![found.number, offset, now, kind, source, event.data])?;
        added += event.data.len().cast_signed() as i64;
    }
    let next_offset = found.next_offset + events.len().cast_signed() as i64;
    transaction
        .prepare_cached(
            "UPDATE sessions SET next_offset = ?, bytes = bytes + ?, changed = ? WHERE number = ?",
        )?
        .execute(params![next_offset, added, now, found.number])?;
    trim(transaction, &found, added, limits)?;
    Ok(Some(found.next_offset.cast_unsigned()))
}

/// Removes the oldest events of a session that has grown beyond its limit, until a tenth of the limit is free: not
/// every append has to remove something.
fn trim(
    transaction: &Transaction<'_>,
    found: &Found,
    added: i64,
    limits: &Limits,
) -> Result<(), SessionError> {
    let limit = i64::try_from(limits.session_bytes).unwrap_or(i64::MAX);
    let mut bytes = found.bytes + added;
    if bytes <= limit {
        return Ok(());
    }
    let mut first = found.first_offset;
    let mut statement = transaction
        .prepare_cached("SELECT offset, length(data) FROM events WHERE session = ? ORDER BY offset")?;
    let mut rows = statement.query([found.number])?;
    while bytes > limit / 10 * 9
        && let Some(row) = rows.next()?
    {
        first = row.get::<_, i64>(0)? + 1;
        bytes -= row.get::<_, i64>(1)?;
    }
    drop(rows);
    transaction
        .execute("DELETE FROM events WHERE session = ? AND offset < ?", params![found.number, first])?;
    let update = "UPDATE sessions SET first_offset = ?, bytes = ? WHERE number = ?";
    transaction.execute(update, params![first, bytes, found.number])?;
    Ok(())
}

fn last_turn(
    transaction: &Transaction<'_>,
    session: i64,
    writer: &str,
) -> Result<Option<(u64, u64)>, SessionError> {
    let mut statement = transaction
        .prepare_cached("SELECT number, first_offset FROM turns WHERE session = ? AND writer = ?")?;
    let row = statement
        .query_row(params![session, writer], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)));
    Ok(row.optional()?.map(|(number, first)| (number.cast_unsigned(), first.cast_unsigned())))
}

fn stored_turn(transaction: &Transaction<'_>, session: &str, turn: &Turn) -> Result<u64, SessionError> {
    let found = find(transaction, session)?;
    let last = last_turn(transaction, found.number, &turn.writer)?;
    last.map(|(_, first)| first).ok_or_else(|| SessionError::NotFound(session.to_owned()))
}

fn delete(transaction: &Transaction<'_>, number: i64) -> Result<(), SessionError> {
    for statement in [
        "DELETE FROM events WHERE session = ?",
        "DELETE FROM turns WHERE session = ?",
        "DELETE FROM sessions WHERE number = ?",
    ] {
        transaction.execute(statement, [number])?;
    }
    Ok(())
}
